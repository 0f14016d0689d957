"""`POST /v1/fetch`: one read of many partitions, under one budget and one deadline.

Messages become JSON only at the end, all of a partition at once.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pydantic import JsonValue

from wings_core.errors import WingsError
from wings_core.fetch.cursors import PartitionCursor
from wings_core.fetch.fetcher import Fetcher
from wings_core.fetch.state import FetchState
from wings_core.json_rows import EncodedRows, encode_rows_within
from wings_core.log import Log
from wings_core.metadata.deadlines import calls_until
from wings_core.model import Topic
from wings_core.names import TopicName
from wings_core.partitions import partition_of
from wings_core.times import Deadline
from wings_server.http.bodies import FetchRequest
from wings_server.shared_reads import ReadEntry, SharedRead

_NONE = EncodedRows(b"", 0)

_OFFSETS_BYTES_MAX = 60
"""The most bytes by which offsets make a result longer than one without messages."""


@dataclass(slots=True, eq=False, kw_only=True)
class _HttpEntry(ReadEntry):
    """One partition of a request; its batches are rows."""

    topic: TopicName
    partition_value: JsonValue


class HttpFetch(SharedRead[_HttpEntry, "HttpAnswer"]):
    """One fetch; see `SharedRead`.

    Args:
        log: The log.
        fetcher: Reads the log in chunks that are small against an answer.
        request: The partitions, offsets and bounds.
        deadline: When the fetch is answered with fewer than `min_messages`.

    Raises:
        NotFound: A topic or the namespace does not exist.
    """

    is_shuffled = True

    def __init__(
        self, log: Log, fetcher: Fetcher, request: FetchRequest, deadline: Deadline
    ) -> None:
        with calls_until(deadline):
            topics = {name: log.admin.get_topic(name) for name in dict.fromkeys(request.topics)}
        entries = _open_entries(topics, request)
        of_topics: dict[TopicName, list[_HttpEntry]] = {}
        for entry in entries:
            if entry.cursor is not None:
                of_topics.setdefault(entry.topic, []).append(entry)
        body = request.body
        live = sum(map(len, of_topics.values()))
        state = FetchState(deadline, body.min_messages, body.max_messages, max(1, live))
        # More Arrow data than this makes more JSON than an answer may have.
        super().__init__(log, fetcher, state, log.limits.http_bytes_max)
        self._entries = entries
        for name, some in of_topics.items():
            self._open(topics[name], some)

    @property
    def _is_enough(self) -> bool:
        return self._state.enough

    def _keep(self, entry: _HttpEntry, rows: pa.RecordBatch, offset: int, share: int) -> int:
        entry.batches.append(rows)
        size = rows.nbytes  # Counted anew at each look.
        entry.bytes += size
        self._bytes += size
        return rows.num_rows

    def _answer(self) -> "HttpAnswer":
        """Return the answer, its messages as JSON."""
        results: list[bytes] = []
        topics: list[tuple[TopicName, int, int]] = []
        messages = 0
        frame = sum(len(_result(entry, _NONE)) + _OFFSETS_BYTES_MAX for entry in self._entries)
        room = self._bytes_max - frame
        partitions = sum(1 for entry in self._entries if entry.batches)
        for entry in self._entries:
            encoded = _NONE
            if entry.batches:
                # Each gets an equal share of what is left; the first message of all always fits.
                encoded = _encode(entry, room // partitions, rows_min=0 if messages else 1)
                partitions -= 1
                room -= len(encoded.text)
                messages += encoded.rows
                topics.append((entry.topic, encoded.rows, len(encoded.text)))
            results.append(_result(entry, encoded))
        errors = tuple(entry.error.code for entry in self._entries if entry.error is not None)
        return HttpAnswer(
            b'{"topics": [' + b", ".join(results) + b"]}", messages, errors, tuple(topics)
        )


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a fetch."""

    body: bytes
    messages: int
    errors: tuple[str, ...]
    """The codes of the partitions that failed."""
    topics: tuple[tuple[TopicName, int, int], ...] = ()
    """The topic, the messages and the bytes of each partition that has any."""


def _open_entries(topics: dict[TopicName, Topic], request: FetchRequest) -> list[_HttpEntry]:
    entries: list[_HttpEntry] = []
    for name, asked in zip(request.topics, request.body.topics, strict=True):
        entry = _HttpEntry(topic=name, partition_value=asked.partition_value, offset=asked.offset)
        try:
            partition = partition_of(asked.partition_value, topics[name].key_type)
            entry.cursor = PartitionCursor(partition, asked.offset)
        except WingsError as error:
            entry.error = error
        entries.append(entry)
    return entries


def _encode(entry: _HttpEntry, bytes_max: int, *, rows_min: int) -> EncodedRows:
    """Encode as many of an entry's messages as fit; one too long for JSON fails the entry."""
    if bytes_max <= 0 and rows_min == 0:
        return _NONE
    batches = entry.batches
    rows = batches[0] if len(batches) == 1 else cast("Any", pa).concat_batches(batches)
    try:
        return encode_rows_within(rows, bytes_max, rows_min=rows_min)
    except WingsError as error:
        entry.error = error
        return _NONE


def _result(entry: _HttpEntry, encoded: EncodedRows) -> bytes:
    """Return one element of the answer's list."""
    name = {"topic": str(entry.topic), "partition_value": entry.partition_value}
    if entry.error is not None:
        error = {"message": entry.error.message, "code": entry.error.code}
        return json.dumps({"_tag": "error", **name, **error}).encode()
    end_offset = entry.offset + encoded.rows - 1
    fields = {
        "_tag": "success",
        **name,
        "start_offset": entry.offset,
        "end_offset": end_offset if encoded.rows else None,
        "next_offset": end_offset + 1,
    }
    return json.dumps(fields).encode()[:-1] + b', "messages": [' + encoded.text + b"]}"
