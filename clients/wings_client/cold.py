"""The cold part of a topic: files of its Iceberg table, and which offsets each of them holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.arrow_types import fields_of
from wings_core.partitions import Partition
from wings_core.storage.parquet_types import from_file

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowArray

__all__ = ["ColdFile", "cold_files", "open_cold_file", "paths_of"]

_ROWS = 65_536
_READERS_MAX = 16
_TOPIC_UUID = "wings.topic_uuid"


@dataclass(frozen=True, slots=True)
class ColdFile:
    """A Parquet file that holds offsets `[start_offset, end_offset)` of one partition."""

    path: str
    """Its URL."""
    partition: Partition
    start_offset: int
    end_offset: int
    schema_version: int = 1
    """Schema version of the topic's schema, in which it is written."""


def paths_of(table: Any, topic_uuid: str) -> list[str]:
    """Return the URLs of the files of a table's current snapshot; none where it is another's.

    Reads its manifests. Raises what pyiceberg and its file systems raise.
    """
    if table.properties.get(_TOPIC_UUID) != topic_uuid:
        return []
    return sorted(task.file.file_path for task in table.scan().plan_files())


def cold_files(table: Any, topic_uuid: str) -> list[ColdFile]:
    """Return the files of a table's current snapshot with the offsets that they hold.

    Reads its manifests, and the footer of each file, several at once. Raises what pyiceberg and
    its file systems raise.
    """
    from concurrent.futures import ThreadPoolExecutor  # Not once the main thread has ended.

    def describe(path: str) -> ColdFile | None:
        opened = open_cold_file(table, path, topic_uuid)
        return None if opened is None else opened.file

    with ThreadPoolExecutor(_READERS_MAX) as threads:
        found = threads.map(describe, paths_of(table, topic_uuid))
        return [file for file in found if file is not None]


def open_cold_file(table: Any, path: str, topic_uuid: str) -> "OpenColdFile | None":
    """Open a file of a table, by its footer; None where it is no segment of the topic."""
    import pyarrow.parquet as pq  # Of few programs alone.

    source: Any = table.io.new_input(path).open()
    # The stub of this pyarrow does not know the option.
    parquet = cast("Any", pq.ParquetFile)(source, page_checksum_verification=True)
    about: dict[bytes, bytes] = parquet.metadata.metadata or {}
    if about.get(_TOPIC_UUID.encode(), b"").decode() != topic_uuid:
        return None
    start_offset = int(about[b"wings.start_offset"])
    partition = Partition(about[b"wings.partition"].decode())
    end_offset = start_offset + parquet.metadata.num_rows
    version = int(about.get(b"wings.schema_version", b"1"))
    return OpenColdFile(ColdFile(path, partition, start_offset, end_offset, version), parquet)


class OpenColdFile:
    """A file of a table, opened; for one thread.

    Args:
        file: Kind of the file.
        parquet: Its reader.
    """

    def __init__(self, file: ColdFile, parquet: Any) -> None:
        self.file = file
        self._parquet = parquet
        self._names = set(parquet.schema_arrow.names)

    def read(
        self, start_offset: int, end_offset: int, schema: pa.Schema
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows of a range, by offset, each batch with the offset of its first row.

        Args:
            start_offset: The first one, of those that the file holds.
            end_offset: Exclusive.
            schema: Schema of the batches: columns of the topic at any version as late as the
                file's, and `__partition`, `__offset` and `__timestamp`. What the file lacks is
                null.

        Raises:
            Exception: What pyarrow and the file system raise, also for a damaged page.
        """
        wanted = [name for name in schema.names if name in self._names]
        # A file is asked for one column at least: batches of none have no rows.
        columns = wanted or ["__offset"]
        first = self.file.start_offset
        for number in range(self._parquet.metadata.num_row_groups):
            rows = self._parquet.metadata.row_group(number).num_rows
            if first < end_offset and start_offset < first + rows:
                at = first
                for batch in self._parquet.iter_batches(_ROWS, [number], columns):
                    begin = max(start_offset - at, 0)
                    count = min(end_offset - at, batch.num_rows) - begin
                    if count > 0:
                        rows_at = at + begin
                        yield rows_at, self._converted(batch.slice(begin, count), rows_at, schema)
                    at += batch.num_rows
            first += rows

    def _converted(self, batch: pa.RecordBatch, offset: int, schema: pa.Schema) -> pa.RecordBatch:
        arrays: Sequence[ArrowArray] = [
            self._column(batch, field.name, field.type, offset) for field in fields_of(schema)
        ]
        return pa.RecordBatch.from_arrays(list(arrays), schema=schema)

    def _column(
        self, batch: pa.RecordBatch, name: str, data_type: pa.DataType, offset: int
    ) -> "ArrowArray":
        arrow = cast("Any", pa)
        if name == "__partition":
            return arrow.repeat(pa.scalar(self.file.partition, data_type), batch.num_rows)
        if name == "__offset":
            return arrow.arange(offset, offset + batch.num_rows)
        if name not in self._names:
            return arrow.nulls(batch.num_rows, data_type)
        return from_file(cast("Any", batch).column(name), data_type)
