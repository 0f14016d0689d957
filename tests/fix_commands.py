"""Commands of Wings are forked, not started anew; see `forked_commands`."""

import subprocess
from collections.abc import Iterator
from typing import cast

import pytest
from forked_commands import ForkingPopen

POPEN = subprocess.Popen


@pytest.fixture(scope="session", autouse=True)
def forked_commands() -> Iterator[None]:
    """Have `subprocess` fork the commands of Wings."""
    subprocess.Popen = cast("type[subprocess.Popen[str]]", ForkingPopen)
    yield
    subprocess.Popen = POPEN
    if ForkingPopen.forker is not None:
        ForkingPopen.forker.end()
        ForkingPopen.forker = None


@pytest.fixture
def started_anew(forked_commands: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands started as a shell starts them, for tests of just that."""
    monkeypatch.setattr(subprocess, "Popen", POPEN)
