"""A commit whose sync failed is not found by the recovery after a crash.

Only a sync that really fails leaves the frames of its transaction in SQLite's log, so here the C
library's fails once, in a process of its own.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fix_metadata import Clock, offsets_of

from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.names import DEFAULT_NAMESPACE

COMPILER = shutil.which("cc")
FAILING_SYNC = Path(__file__).with_name("failing_sync.c")

COMMIT_AND_CRASH = """
import os, pathlib, sys
from fix_metadata import SCHEMA, batch_of
from wings_core.errors import Internal
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED

metadata = SqliteMetadata(pathlib.Path(sys.argv[1]))
topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)
metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 2})])
pathlib.Path(os.environ["FAIL_NEXT_SYNC"]).touch()
try:
    metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 5})])
except Internal as error:
    print(error.message, flush=True)
os._exit(0)  # As a crash does: the log stays as it is.
"""


@pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="needs a C compiler on Linux"
)
def test_a_commit_whose_sync_failed_does_not_come_back_after_a_crash(tmp_path: Path) -> None:
    assert COMPILER is not None
    shim = tmp_path / "failing_sync.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", shim, FAILING_SYNC, "-ldl"], check=True)
    database = tmp_path / "metadata.db"
    child = subprocess.run(
        [sys.executable, "-c", COMMIT_AND_CRASH, database],
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "FAIL_NEXT_SYNC": str(tmp_path / "fail-next-sync"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == "metadata failed: disk I/O error\n"
    with SqliteMetadata(database, clock=Clock()) as metadata:
        topic = metadata.admin.get_topic(DEFAULT_NAMESPACE.topic("orders"))
        assert offsets_of(metadata.registry, topic) == [(0, 1)]
