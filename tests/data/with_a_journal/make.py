"""Make `directory.tar.gz` by the version of Wings that is imported; README.md says how.

python make.py EMPTY_DIRECTORY
"""

import json
import os
import shutil
import sqlite3
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import wings_client
from wings_server.testing import server_process

PUSHES = 16
JOURNALED_MIN = 6


def fill(data: Path) -> dict[str, object]:
    """Leave a directory as a kill does, with pushes in its journal; returns what is in it."""
    rows: dict[str, list[int]] = {"plain": [], "a": [], "b": []}
    with server_process(data) as server, wings_client.connect(server.flight) as client:
        client.create_topic("plain", {"n": "int64"})
        client.create_topic("keyed", {"k": "string", "n": "int64"}, partition_key="k")
        client.push("plain", {"n": list(range(1_000, 1_020))})
        rows["plain"] += range(1_000, 1_020)
        with client.producer("keyed", producer_id="till") as producer:
            for number in range(PUSHES):
                key = "ab"[number % 2]
                producer.send({"k": [key], "n": [number]}).result()
                rows[key].append(number)
                client.push("plain", {"n": [number, -number]})
                rows["plain"] += (number, -number)
        server.kill()
    return {"rows": rows, "sequence": PUSHES}


def main() -> None:
    """Make the archive, again where the journal was applied too late for a test to see."""
    os.chdir(sys.argv[1])
    data = Path("data")
    journaled = 0
    expected: dict[str, object] = {}
    while journaled < JOURNALED_MIN:
        shutil.rmtree(data, ignore_errors=True)
        expected = fill(data)
        copy = Path("copy")
        shutil.copytree(data, copy)
        with closing(sqlite3.connect(copy / "metadata.sqlite")) as connection:
            ((journaled,),) = connection.execute("SELECT count(*) FROM journal")
        shutil.rmtree(copy)
    Path("expected.json").write_text(json.dumps({**expected, "journaled": journaled}))
    for name in ("RESERVE", "LOCK", "METADATA.LOCK", "metadata.sqlite-shm", "holds.sqlite-shm"):
        (data / name).unlink(missing_ok=True)
    with tarfile.open("directory.tar.gz", "w:gz") as archive:
        archive.add(data)
        archive.add("expected.json")


if __name__ == "__main__":
    main()
