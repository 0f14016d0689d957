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


PUSH_AND_CRASH = """
import os, pathlib, sys
from fix_metadata import SCHEMA
from wings_core.errors import Internal
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import CommitBatch, InlineFolio, PageAddress, StoredPage
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED

metadata = SqliteMetadata(pathlib.Path(sys.argv[1]))
topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)

def push(name):
    page = StoredPage(UNPARTITIONED, 1, PageAddress(name, 0, 3))
    batch = CommitBatch(0, topic.uuid, (page,))
    metadata.registry.commit([batch], None, InlineFolio(name, b"abc"))

for number in range(3):
    push(f"{number}.inline")
for failing in ["FAIL_NEXT_SYNC", "FAIL_SYNC_AFTER"][:FAILING_SYNCS]:
    pathlib.Path(os.environ[failing]).touch()
try:
    push("refused.inline")
except Internal as error:
    print(error.message, flush=True)
push("3.inline")
os._exit(0)
"""


pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(
        COMPILER is None or not sys.platform.startswith("linux"),
        reason="needs a C compiler on Linux",
    ),
]


def crash(script: str, directory: Path) -> Path:
    """Run a script whose metadata fails at one sync; return its database, as a crash left it."""
    assert COMPILER is not None
    shim = directory / "failing_sync.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", shim, FAILING_SYNC, "-ldl"], check=True)
    database = directory / "metadata.db"
    child = subprocess.run(
        [sys.executable, "-c", script, database],
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "FAIL_NEXT_SYNC": str(directory / "fail-next-sync"),
            "FAIL_SYNC_AFTER": str(directory / "fail-sync-after"),
            "SYNCED_LOG": str(directory / "synced-log"),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout == "metadata failed: disk I/O error\n"
    return database


def test_a_commit_whose_sync_failed_does_not_come_back_after_a_crash(tmp_path: Path) -> None:
    with SqliteMetadata(crash(COMMIT_AND_CRASH, tmp_path), clock=Clock()) as metadata:
        topic = metadata.admin.get_topic(DEFAULT_NAMESPACE.topic("orders"))
        assert offsets_of(metadata.registry, topic) == [(0, 1)]


@pytest.mark.parametrize("failing", [1, 2], ids=["the commit's", "that of the fence too"])
def test_what_comes_after_a_sync_that_failed_is_there_after_a_power_cut(
    tmp_path: Path, failing: int
) -> None:
    database = crash(PUSH_AND_CRASH.replace("FAILING_SYNCS", str(failing)), tmp_path)
    shutil.move(tmp_path / "synced-log", f"{database}-wal")
    with SqliteMetadata(database, clock=Clock()) as metadata:
        topic = metadata.admin.get_topic(DEFAULT_NAMESPACE.topic("orders"))
        assert offsets_of(metadata.registry, topic) == [(0, 0), (1, 1), (2, 2), (3, 3)]
