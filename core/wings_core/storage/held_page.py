"""Pages in memory, whole or as some columns, verified once and decoded for their readers."""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from wings_core.errors import StorageCorrupt
from wings_core.storage.ipc import is_compressed, prune_metadata
from wings_core.storage.page import (
    PageHead,
    buffers_of,
    parts_of,
    read_head,
    read_page,
    shape_of_topic,
    verify_page,
)

DECODED_BUFFER_BYTES = 200
"""Approximate overhead of each buffer of a decoded batch."""


class HeldPage(Protocol):
    """A page in memory, readable without a request to the object store."""

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """Return rows, or some of their columns; see `FolioStore.read`.

        Raises:
            StorageCorrupt: A column not verified before is damaged, or the page belongs to another
                topic.
        """
        ...

    @property
    def extra_bytes(self) -> int:
        """Memory that the page takes in addition to the bytes read."""
        ...

    @property
    def is_compressed(self) -> bool:
        """Whether each read decodes the rows again."""
        ...


class WholePage:
    """All bytes of a page.

    Args:
        page: The page, with its padding.
        topic_uuid: The topic that it must belong to.
        schema: The topic's schema.
        parts: The parts to verify now, as a bit mask of `parts_of`.

    Raises:
        StorageCorrupt: One of `parts` is damaged.
    """

    def __init__(self, page: pa.Buffer, topic_uuid: str, schema: pa.Schema, parts: int) -> None:
        self._page = page
        self._topic_uuid = topic_uuid
        self._verified = parts
        head = verify_page(page, topic_uuid, schema, parts)
        self._rows: pa.RecordBatch | None = None
        """Decoded rows; None for compressed buffers, which each read decodes as needed."""
        self.is_compressed = is_compressed(head.metadata)
        if not self.is_compressed:
            self._rows = read_page(page, topic_uuid, schema)
        self.extra_bytes = buffers_of(topic_uuid, schema) * DECODED_BUFFER_BYTES

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """See `HeldPage.read`."""
        parts = parts_of(schema, columns)
        missing = parts & ~self._verified
        if missing or topic_uuid != self._topic_uuid:
            verify_page(self._page, topic_uuid, schema, missing)
            self._verified |= parts
        if self._rows is not None:
            return self._rows if columns is None else self._rows.select(list(columns))
        if columns is None:
            return read_page(self._page, topic_uuid, schema)
        if list(columns) == list(range(len(columns))):
            # pyarrow reads only as many columns as the schema has.
            return read_page(self._page, topic_uuid, pa.schema(list(schema)[: len(columns)]))
        head = read_head(memoryview(self._page), self._page.size, topic_uuid, schema)
        bytes_of: dict[int, pa.Buffer] = {}
        for column in set(columns):
            start, end = head.column(column)
            bytes_of[column] = self._page.slice(start, end - start)
        return PrunedPage(head, topic_uuid, schema, bytes_of).read(topic_uuid, schema, columns)


class WrittenPage:
    """An uncompressed page that this process has just written, for its first readers.

    Args:
        page: The page, with its padding.
    """

    def __init__(self, page: pa.Buffer) -> None:
        self._page = page
        self._rows: pa.RecordBatch | None = None
        self._topic_uuid = ""
        """UUID of the rows' topic."""
        self.extra_bytes = 0
        self.is_compressed = False

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """See `HeldPage.read`; verifies nothing, as the bytes never left memory."""
        if self._rows is None or topic_uuid != self._topic_uuid:
            self._rows = read_page(self._page, topic_uuid, schema)
            self._topic_uuid = topic_uuid
        return self._rows if columns is None else self._rows.select(list(columns))


class PrunedPage:
    """Some columns of a page, as a message of its own.

    Args:
        head: Header and metadata of the page.
        topic_uuid: UUID of its topic.
        schema: The topic's whole schema.
        columns: Verified bytes of each column, by index.
    """

    def __init__(
        self, head: PageHead, topic_uuid: str, schema: pa.Schema, columns: dict[int, pa.Buffer]
    ) -> None:
        self._topic_uuid = topic_uuid
        kept = sorted(columns)
        self._place = {column: place for place, column in enumerate(kept)}
        self._schema = pa.schema([schema.field(column) for column in kept])
        shape = shape_of_topic(topic_uuid, schema)
        metadata = prune_metadata(head.metadata, shape, head.layout, kept)
        self._message = _joined([pa.py_buffer(metadata), *(columns[column] for column in kept)])
        self.is_compressed = is_compressed(head.metadata)
        self._rows = None if self.is_compressed else self._decode()
        buffers = sum(
            shape.first_buffers[column + 1] - shape.first_buffers[column] for column in kept
        )
        self.extra_bytes = len(metadata) + buffers * DECODED_BUFFER_BYTES

    def read(
        self, topic_uuid: str, schema: pa.Schema, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """See `HeldPage.read`; `columns` must be among those held."""
        if topic_uuid != self._topic_uuid:
            raise StorageCorrupt(f"it belongs to topic {self._topic_uuid}, not to {topic_uuid}")
        assert columns is not None, "a read of all columns reads the whole page"
        rows = self._decode() if self._rows is None else self._rows
        return rows.select([self._place[column] for column in columns])

    def _decode(self) -> pa.RecordBatch:
        try:
            return pa.ipc.read_record_batch(self._message, self._schema)
        except MemoryError:
            raise  # StorageCorrupt is also an Arrow exception.
        except (pa.ArrowException, OSError) as error:
            raise StorageCorrupt(f"its rows cannot be read: {error}") from error


def _joined(parts: Sequence[pa.Buffer]) -> pa.Buffer:
    """Return a concatenated copy of all parts."""
    joined = pa.allocate_buffer(sum(part.size for part in parts))
    view = memoryview(joined).cast("B")
    position = 0
    for part in parts:
        view[position : position + part.size] = memoryview(part).cast("B")
        position += part.size
    return joined
