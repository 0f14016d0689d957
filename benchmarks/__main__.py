"""`make bench`: measure all figures, or those named, print a table and write JSON."""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import (
    cli,
    client,
    fan_out,
    filters,
    gather,
    groups,
    http,
    ingest,
    kafka,
    locate,
    memory,
    metadata,
    nodes,
    objects,
    parquet,
    partitions,
    poll,
    put,
    scan,
    security,
    share,
    share_streams,
    small,
    spark,
    sql,
    tables,
    tiers,
)
from benchmarks.harness import Row, report

SUITES: dict[str, Callable[[], Iterator[Row]]] = {
    "client": client.run,
    "cli": cli.run,
    "fan_out": fan_out.run,
    "filters": filters.run,
    "gather": gather.run,
    "groups": groups.run,
    "scan": scan.run,
    "security": security.run,
    "share": share.run,
    "share-streams": share_streams.run,
    "put": put.run,
    "small": small.run,
    "poll": poll.run,
    "http": http.run,
    "kafka": kafka.run,
    "locate": locate.run,
    "memory": memory.run,
    "metadata": metadata.run,
    "nodes": nodes.run,
    "objects": objects.run,
    "parquet": parquet.run,
    "partitions": partitions.run,
    "spark": spark.run,
    "sql": sql.run,
    "tables": tables.run,
    "tiers": tiers.run,
    "ingest": ingest.run,
}


def main() -> int:
    """Return 0 where every figure holds, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; default all")
    parser.add_argument("--json", type=Path, default=Path("bench-results.json"))
    options = parser.parse_args()
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"unknown suites: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    for name in options.suites or SUITES:
        for row in SUITES[name]():
            print(f"{row.name}: {row.ratio:.2f} ({row.hold})", file=sys.stderr, flush=True)  # noqa: T201
            rows.append(row)
    report(rows, options.json)
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
