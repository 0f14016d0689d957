"""The test files of one area of the product: `make test AREA=share` runs what a change needs.

An area is a set of words that paths of test files hold. A file may belong to several areas, and
belongs to at least one; those directly in tests/unit (layers, documents) belong to all.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parent
AREAS = {
    "backup": "backup check repair damage released_directory",
    "client": "unit/client test_client_ clients_ typed handoff python_types gather pytest",
    "commands": "cli test_hour unit/client/test_files unit/client/test_command test_export "
    "real_files real_data docs example notebook full_disk",
    "commits": "unit/ingest push append stage producer accumulator commit sequence power_loss "
    "test_crash faults log_model put",
    "console": "console test_docs",
    "http": "http openapi console fuzz token",
    "ingest": "ingest queue shards pipeline",
    "kafka": "kafka",
    "maintenance": "maintain tiers retention purge objects storage parquet memory long",
    "metadata": "unit/metadata unit/protocol postgres pooler power_loss inline kept_lookups "
    "test_stage schema world",
    "nodes": "cluster nodes process members stateless rolling deploy shutdown half_open "
    "settings server/",
    "operations": "metrics traces tracing logs totals times wire_details topics results server/ "
    "interrupt leave exit forked",
    "reads": "fetch follow consumer scan many gather filter fan_out pruning contracts info "
    "latest next_offsets discovery",
    "security": "security token tls rights quota secret revocation private authenticator",
    "share": "share hour_celery consumer_groups hold worker vanish times_to_hold dead_letter",
    "spark": "spark cold_path connect test_tables_page",
    "sql": "sql hour_analyst jdbc table_reads other_systems flight_sql filter json_rows",
    "storage": "storage maintain tiers objects parquet damage disk",
    "tables": "tables table_reads iceberg parquet",
}


def files(area: str) -> list[Path]:
    """List the test files of `area`, sorted; `area` is a key of AREAS, else KeyError."""
    paths = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    return sorted(
        TESTS / path
        for path in paths
        if path.parent == Path("unit") or any(word in str(path) for word in AREAS[area].split())
    )


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in AREAS:
        sys.exit(f"name one area: {', '.join(AREAS)}")
    sys.stdout.write(" ".join(map(str, files(sys.argv[1]))))
