"""`wings push` of a Parquet file, against reading it with pyarrow and pushing it by hand.

Both run in this process: what is compared is rows a second, not how long Python takes to start.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet

from benchmarks.harness import Row, compare, create_topic, narrow, open_put
from wings_client.cli.app import app
from wings_server.testing import server_process

ROW_GROUP_ROWS = 1_048_576
ROW_GROUPS = 12
BATCH_ROWS = 65_536


def run() -> Iterator[Row]:
    """Measure a file of twelve row groups, 384 MiB in memory."""
    with (
        tempfile.TemporaryDirectory() as directory,
        server_process() as server,
        server.client() as client,
    ):
        path = Path(directory) / "rows.parquet"
        schema = narrow(1).schema
        _write(path, schema)
        create_topic(client, "pushed", schema)
        command = ["push", "pushed", str(path), "--endpoint", server.flight]
        yield compare(
            "wings push of a Parquet file, 4 columns",
            "M rows/s",
            0.8,
            lambda: _rate(lambda: _by_command(command)),
            lambda: _rate(lambda: _by_hand(client, "pushed", path)),
        )


def _rate(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return ROW_GROUP_ROWS * ROW_GROUPS / (time.perf_counter() - started) / 1e6


def _by_command(arguments: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        app(arguments, standalone_mode=False)


def _by_hand(client: flight.FlightClient, topic: str, path: Path) -> None:
    file: Any = pyarrow.parquet.ParquetFile(path)
    descriptor = flight.FlightDescriptor.for_path(topic)
    writer, answers = open_put(client, descriptor, file.schema_arrow)
    batches = 0
    for batch in file.iter_batches(BATCH_ROWS):
        writer.write_batch(batch)
        batches += 1
    writer.done_writing()
    for _ in range(batches):
        assert answers.read() is not None
    writer.close()


def _write(path: Path, schema: pa.Schema) -> None:
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for _ in range(ROW_GROUPS):
            writer.write_batch(narrow(ROW_GROUP_ROWS))
