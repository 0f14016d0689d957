"""Children that were forked from a process with a client: told so at once, and harmless to it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wings_server.testing import RunningServer

CLIENT = Path(__file__).with_name("forking_client.py")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.mark.parametrize("way", [pytest.param("os", marks=pytest.mark.soak), "multiprocessing"])
def test_a_forked_child_is_refused_what_its_parent_opened_which_goes_on(
    server: RunningServer, new_topic_id: str, way: str
) -> None:
    command = [sys.executable, str(CLIENT), server.flight, new_topic_id, way]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    child: dict[str, str | None] = found["child"]
    assert found["status"] == 7, ended.stderr
    for call, error in child.items():
        if call.endswith(".close") and call != "stage.close":
            assert error is None, call
        else:
            assert error is not None, call
            assert "forked" in error, (call, error)
    assert len(child) > 35
    parent = found["parent"]
    assert len(parent["followed"]) == 4
    assert len(parent["consumed"]) >= 4
    assert 0 < parent["sql"] < 1_000_000
    assert parent["scanned"] == 3
    assert parent["rows"] == [str(each) for each in range(7)]
