"""Running a statement for a terminal or a pipe, with its progress."""

import sys
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import pyarrow as pa

from wings_client.cli.output import Format, parquet_writer, write_all

QUIET_SECONDS = 1.0
"""Time after which a statement's progress is shown."""

_SHOW_SECONDS = 0.2
_CLEAR = "\r\x1b[K"


class SqlFormat(StrEnum):
    """Format of written rows."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Progress:
    """Display of a statement's elapsed time on standard error, if it is a terminal."""

    def __init__(self) -> None:
        self.rows = 0
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def seconds(self) -> float:
        """Elapsed seconds."""
        return time.monotonic() - self._began

    def start(self) -> None:
        """Start showing the progress."""
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._show, name="wings-progress", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Remove the progress. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def counted(
        self, batches: Iterable[pa.RecordBatch], *, is_shown: bool
    ) -> Generator[pa.RecordBatch]:
        """Yield batches, counting rows; `is_shown` if rows are written to the same terminal."""
        for batch in batches:
            self.rows += batch.num_rows
            if is_shown:
                self.stop()
            yield batch
        self.stop()

    def _show(self) -> None:
        pause = QUIET_SECONDS
        is_clear = True
        while not self._ended.wait(pause):
            pause, is_clear = _SHOW_SECONDS, False
            sys.stderr.write(f"{_CLEAR}{self.seconds:.0f} s, {count_of(self.rows)} so far")
            sys.stderr.flush()
        if not is_clear:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


@contextmanager
def progress() -> Generator[Progress]:
    """Show the progress of a statement during the block."""
    shown = Progress()
    shown.start()
    try:
        yield shown
    finally:
        shown.stop()


def write_rows(reader: pa.RecordBatchReader, wanted: SqlFormat, shown: Progress) -> None:
    """Write the rows of a statement to standard output.

    Args:
        reader: Reader of the rows.
        wanted: The format.
        shown: Counts them.
    """
    # A table is written at the end, when its widths are known.
    is_shown = wanted is not SqlFormat.TABLE and sys.stdout.isatty()
    batches = shown.counted(reader, is_shown=is_shown)
    if wanted is not SqlFormat.PARQUET:
        write_all(batches, reader.schema, Format(wanted.value))
        return
    sink: Any = sys.stdout.buffer
    with parquet_writer(pa.PythonFile(sink, "w"), reader.schema) as write_table:
        for batch in batches:
            write_table(pa.Table.from_batches([batch]))
    sink.flush()


def count_of(rows: int) -> str:
    """Return a number of rows with its unit."""
    return f"{rows:,} row{'' if rows == 1 else 's'}"
