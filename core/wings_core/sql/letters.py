"""Dead letters as tables, with the messages that they hold.

`system.dead_letters` lists all letters, the message as JSON. `system."dead_letters/TOPIC"` lists
the letters of one source topic: the letter's own columns, then those of the message in the source's
current schema.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from wings_core.arrow_types import fields_of
from wings_core.contracts.reads import ReadOptions
from wings_core.errors import InvalidArgument, InvalidName, NotFound, WingsError
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Cancel, Read
from wings_core.fetch.selection import OFFSET_FIELD, Selection
from wings_core.json_rows import encode_lines
from wings_core.model import Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.share.dead_letters.payloads import read_payload
from wings_core.share.dead_letters.writer import DEAD_LETTER_SCHEMA
from wings_core.sql.predicate import Predicate
from wings_core.sql.topic_table import ScanCount, shown

if TYPE_CHECKING:
    from wings_core.log import Log

_PAYLOAD, _SOURCE = "payload", "source_topic"

_OWN = [
    pa.field("topic", pa.string()),
    pa.field("offset", pa.int64()),
    *(field for field in fields_of(DEAD_LETTER_SCHEMA) if field.name != _PAYLOAD),
]
"""Columns of the letter itself: its position, and the facts about its message."""

LETTERS_SCHEMA = pa.schema([*_OWN, pa.field(_PAYLOAD, pa.string())])
"""Schema of `system.dead_letters`."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A column of the source's messages."""

    name: str
    """Name in the source topic."""
    field: "pa.Field[Any]"
    """The corresponding column of the table."""


def is_of_letters(topic: Topic) -> bool:
    """Return whether a topic holds dead letters."""
    return topic.partition_key is None and topic.schema.equals(DEAD_LETTER_SCHEMA)


class LettersTable:
    """The table of dead letters.

    Args:
        log: The log that stores them.
        topics: Topics that hold letters and that the reader may read.
        source: The topic whose letters are listed; None lists all, with the message as JSON.
        cancel: Ends the scans.
        count: Counts rows and bytes read, and keeps the first error of a scan.
    """

    def __init__(
        self,
        log: "Log",
        topics: Sequence[Topic],
        source: Topic | None,
        cancel: Cancel,
        count: ScanCount,
    ) -> None:
        self._log = log
        self._source = source
        self._cancel = cancel
        self._count = count
        # Fixed once: letters that arrive later are not seen.
        self._ends = [
            (topic, log.registry.partition_state(topic.uuid, UNPARTITIONED)) for topic in topics
        ]
        self._held = [] if source is None else _held(source)
        self.schema = (
            LETTERS_SCHEMA
            if source is None
            else pa.schema([*_OWN, *(each.field for each in self._held)])
        )
        self._sources: dict[str, Topic | None] = {}

    def batches(self, schema: pa.Schema, predicate: Predicate | None) -> Iterator[pa.RecordBatch]:
        """Yield the columns of `schema` of the rows that satisfy `predicate`."""
        needed = set(schema.names) | (predicate.columns if predicate else set[str]())
        try:
            for topic, state in self._ends:
                selection = Selection.of(topic, ReadOptions(system_columns=True))
                start, stop = state.log_start_offset, state.next_offset
                cursor = PartitionCursor(UNPARTITIONED, start, stop, clamps=True)
                read = Read.of(topic, [cursor], selection)
                for chunk in self._log.fetcher.scan(read, self._cancel):
                    self._count.rows += chunk.batch.num_rows
                    self._count.bytes += chunk.bytes
                    rows = self._shown(topic, chunk.batch, needed)
                    passed = rows if predicate is None else predicate.filter(rows)
                    yield passed.select(schema.names)
        except WingsError as error:
            self._count.error = self._count.error or error
            raise

    def _shown(self, topic: Topic, letters: pa.RecordBatch, needed: set[str]) -> pa.RecordBatch:
        """Return letters as rows of the table, with the needed columns."""
        if self._source is not None:
            name = pa.scalar(str(self._source.name), pa.string())
            of_source = pc.call_function("equal", [letters.column(_SOURCE), name])
            letters = letters.filter(of_source)
        arrays: dict[str, Any] = {}
        for field in self.schema:
            if field.name not in needed or field.name in arrays:
                continue
            if field.name == "topic":
                arrays["topic"] = cast("Any", pa).repeat(str(topic.name), letters.num_rows)
            elif field.name == "offset":
                arrays["offset"] = letters.column(OFFSET_FIELD.name)
            elif field.name in DEAD_LETTER_SCHEMA.names and field.name != _PAYLOAD:
                arrays[field.name] = letters.column(field.name)
            else:
                arrays |= self._messages(letters)
        fields = [self.schema.field(name) for name in arrays]
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))

    def _messages(self, letters: pa.RecordBatch) -> dict[str, Any]:
        """Return the message columns of letters, by name."""
        found = [self._message(letters, row) for row in range(letters.num_rows)]
        if self._source is None:
            texts = [None if each is None else _json(each) for each in found]
            return {_PAYLOAD: pa.array(texts, pa.string())}
        columns: dict[str, Any] = {}
        for held in self._held:
            values = [_value(each, held) for each in found]
            columns[held.field.name] = pa.concat_arrays([pa.array([], held.field.type), *values])
        return columns

    def _message(self, letters: pa.RecordBatch, row: int) -> pa.RecordBatch | None:
        """Return the message of a letter; None if it has none, or an unreadable one."""
        payload = cast("Any", letters.column(_PAYLOAD)[row]).as_buffer()
        source = self._source_of(letters.column(_SOURCE)[row].as_py())
        if payload is None or source is None:
            return None
        try:
            return read_payload(payload, source.schemas, unmarked=True)[0]
        except InvalidArgument:
            return None

    def _source_of(self, name: str) -> Topic | None:
        if self._source is not None:
            return self._source
        if name not in self._sources:
            try:
                self._sources[name] = self._log.admin.get_topic(TopicName.parse(name))
            except (InvalidName, NotFound):
                self._sources[name] = None  # Deleted.
        return self._sources[name]


def _held(source: Topic) -> list[_Held]:
    """Return the columns of a source's messages; names that a letter has too get a prefix."""
    taken = {field.name for field in _OWN}
    held: list[_Held] = []
    for column in shown(source).columns.values():
        if column.name[:2] != "__":
            name = column.name
            while name.lower() in taken:
                name = f"{_PAYLOAD}_{name}"
            taken.add(name.lower())
            held.append(_Held(column.name, pa.field(name, column.field.type)))
    return held


def _value(message: pa.RecordBatch | None, held: _Held) -> Any:
    """Return the value of one column of a message, as an array of length one."""
    if message is not None and held.name in message.schema.names:
        value = message.column(held.name)
        try:
            return value if value.type == held.field.type else value.cast(held.field.type)
        except pa.ArrowInvalid:
            pass  # Written with an earlier schema; the value does not fit the present type.
    return cast("Any", pa).nulls(1, held.field.type)


def _json(message: pa.RecordBatch) -> str:
    return b"".join(encode_lines(message)).decode().strip()
