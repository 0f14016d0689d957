"""The fixture plugins, one for each concern; they lie in `fixtures`."""

import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"  # There is but Trio's, which imports all of it.

import pytest
from forked_commands import POPEN, ForkingPopen
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from property_examples import QUICK, THOROUGH

gc.disable()  # Until all is imported and collected, of which nothing is garbage: see `fix_run`.

settings.register_profile("quick", QUICK)
settings.register_profile("thorough", THOROUGH)  # By --hypothesis-profile.
settings.load_profile("quick")

pytest_plugins = ("fix_run",)

WHERE_TESTS_RUN = (
    "fix_aws",
    "fix_calls",
    "fix_client",
    "fix_clouds",
    "fix_commands",
    "fix_files",
    "fix_ingest",
    "fix_ingest_run",
    "fix_postgres",  # Before the one that imports it.
    "fix_metadata",
    "fix_new_metadata",
    "fix_objects",
    "fix_server",
    "fix_share",
    "fix_spark",
    "fix_storage",
    "fix_threads",
)
"""The process that only shares the tests among others does without: no other starts before it."""
pytest.register_assert_rewrite(*WHERE_TESTS_RUN)  # The `conftest.py` of a folder imports some.

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
"""Many times what the files of a run take."""

_directory = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Import the fixtures where tests run; have few examples do without constants of our sources.

    One value of twenty would be one of those. To find them, each process parses all sources, for
    two seconds where none has before.
    """
    if config.getoption("--hypothesis-profile") != "thorough":
        patched: Any = providers
        patched._get_local_constants = lambda: patched._local_constants
    if not config.option.numprocesses:
        for name in WHERE_TESTS_RUN:
            config.pluginmanager.import_plugin(name)
    _have_temporary_files_in_memory(config)


def _have_temporary_files_in_memory(config: pytest.Config) -> None:
    """Have them there, where there is enough: a sync then costs nothing.

    That a crash of the machine loses what was not synced is tested by faults in the calls, not by
    the disk; what a killed process has written is there in either.
    """
    if hasattr(config, "workerinput") or "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        return
    directory = Path(tempfile.mkdtemp(prefix="wings-tests-", dir=MEMORY))
    directory.chmod(0o711)  # PostgreSQL runs as another user.
    config.stash[_directory] = directory
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    os.environ["XDG_STATE_HOME"] = str(directory / "state")  # Of commands.


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Generator[None]:
    """Fork the processes that share the tests from one that has imported the most of all."""
    if session.config.option.numprocesses:
        subprocess.Popen = cast("type[subprocess.Popen[str]]", ForkingPopen)
    try:
        yield
    finally:
        subprocess.Popen = POPEN


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what a run had in memory."""
    if ForkingPopen.forker is not None:
        ForkingPopen.forker.end()
    if (directory := config.stash.get(_directory, None)) is not None:
        shutil.rmtree(directory, ignore_errors=True)
        os.environ.pop("TMPDIR", None)
        os.environ.pop("XDG_STATE_HOME", None)
        tempfile.tempdir = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape half surrogate pairs in what a test logged: a report with one ends the whole run."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode("utf-8"))
        for title, text in report.sections
    ]
    return report
