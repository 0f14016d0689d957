"""Make `directory.tar.gz` by the version of Wings that is imported; README.md says how.

python make.py EMPTY_DIRECTORY
"""

import json
import os
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

import wings_client
from wings_client import Client
from wings_server.testing import running_server

earlier = runpy.run_path(str(Path(__file__).parents[1] / "0.1.0" / "make.py"))
FORMATS, rows_of, merge = earlier["FORMATS"], earlier["rows_of"], earlier["merge"]


def fill(client: Client) -> dict[str, Any]:
    """Leave some of all there is in metadata and files; returns what is expected of it."""
    expected = earlier["fill"](client)
    client.create_topic("orders", {"k": "string", "n": "int64"}, partition_key="k")
    client.push("orders", {"k": ["a", "b", "a"], "n": [1, 2, 3]})
    client.create_topic("totals", {"n": "int64"})
    transactions = client.transactions("adder")
    options: Any = {"group": True, "auto_commit": False, "timeout": 30}
    with client.consumer("adders", "orders", **options) as consumer:
        read = 0
        for taken in consumer:
            with transactions.begin() as transaction:
                transaction.push("totals", {"n": [sum(taken.batch.column("n").to_pylist())]})
                transaction.commit(consumer)
            if (read := read + taken.batch.num_rows) == 3:
                break
    numbered = {"kafka": {"partitions": 2, "value": "json"}}
    client.create_topic(
        "numbered", {"partition": "int32", "n": "int64"}, "partition", config=numbered
    )
    client.push("numbered", {"partition": [0, 1, 1], "n": [1, 2, 3]})
    more = {topic: rows_of(client, topic) for topic in ("orders", "totals", "numbered")}
    return {**expected, "rows": {**expected["rows"], **more}}


def main(directory: Path) -> None:
    """Write the directory, what is expected of it, and the archive of both."""
    os.chdir(directory)
    root, quiet = earlier["ROOT"], earlier["QUIET"]
    with (
        running_server(Path("data"), limits=quiet, root_token=root) as server,
        wings_client.connect(server.flight, token=root) as client,
    ):
        expected = fill(client)
    Path("expected.json").write_text(json.dumps(expected, default=str))
    with tarfile.open("directory.tar.gz", "w:gz") as archive:
        for name in ("data", "expected.json"):
            archive.add(name, filter=earlier["anonymous"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
