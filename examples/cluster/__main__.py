"""A cluster on this machine: S3, PostgreSQL, and three nodes.

Starts all of it as processes of their own, on free ports and a temporary directory, takes a tour
(pushes, looks into the bucket, wakes a long poll across nodes, scans from all, merges what was
pushed into segments, kills a node under load and counts), and then serves until Ctrl-C. Leaves
nothing.

Run it with `make cluster`, or `python examples/cluster`. PostgreSQL is that of the package
`pgserver`, or of the system, or the one that --metadata-url names. S3 is moto's server, in memory.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from processes import BUCKET, Cluster
from tour import say, tour

ROWS = 200_000


def main() -> None:
    """Run the cluster."""
    arguments = parsed()
    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory(prefix="wings-cluster-") as directory:
        try:
            run(Path(directory), arguments)
        except KeyboardInterrupt:
            # A second one would leave processes behind.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    say("stopped all processes, removed the directory")


def run(directory: Path, arguments: argparse.Namespace) -> None:
    """Start the cluster, take the tour, and serve."""
    objects = not arguments.shared_directory
    with Cluster(directory, arguments.metadata_url, objects=objects) as cluster:
        say(f"messages go to {cluster.hot or 'a directory that the nodes share'}")
        if cluster.metadata is None:
            say("metadata in PostgreSQL; no node has a directory")
        else:
            say(f"metadata service at {cluster.metadata.address}, over PostgreSQL")
            say(f"replicas of holds at {', '.join(replica.address for replica in cluster.holds)}")
        for number, node in enumerate(cluster.nodes, 1):
            say(f"node {number} at {node.flight} and {node.http} (process {node.pid})")
        tour(cluster, arguments.rows)
        if not arguments.once:
            if cluster.hot is not None:
                say(f"S3 at {os.environ['AWS_ENDPOINT_URL']}, bucket {BUCKET}")
            say(f"export WINGS_TOKEN={cluster.token} WINGS_TLS_CA={cluster.authority}")
            say(f"serving: wings topic list --endpoint {','.join(cluster.addresses)}")
            say("Ctrl-C ends it")
            while True:  # Not `signal.pause`, which would miss one that comes just before.
                time.sleep(1)


def stop(_signal: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does."""
    raise KeyboardInterrupt


def parsed() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python examples/cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=ROWS, help="flights to push (%(default)s)")
    parser.add_argument("--once", action="store_true", help="end after the tour")
    parser.add_argument(
        "--shared-directory",
        action="store_true",
        help="keep messages in a directory that the nodes share, instead of S3",
    )
    parser.add_argument("--metadata-url", help="a PostgreSQL to use instead of starting one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
