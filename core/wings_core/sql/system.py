"""System tables: metadata as tables, with columns named as the fields of the actions' responses.

A table shows what its reader may see: the topics on which it has the right that the corresponding
action needs; nodes only to an operator.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from wings_core.errors import InvalidSql, NotFound
from wings_core.fetch.fetcher import Cancel
from wings_core.model import Topic
from wings_core.security.principal import Principal
from wings_core.security.rights import DATA_RIGHTS, Right
from wings_core.sql.letters import LETTERS_SCHEMA, LettersTable, is_of_letters
from wings_core.sql.topic_table import ScanCount
from wings_core.suggestions import suggested

if TYPE_CHECKING:
    from wings_core.log import Log

CONSUMERS_AT_ONCE = 1_000
"""Consumer names per request to metadata."""

_TEXT, _NUMBER, _TIME = pa.string(), pa.int64(), pa.timestamp("us", "UTC")

Columns = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class _Table:
    schema: pa.Schema
    columns: "Callable[[Log, Principal], Columns]"


@dataclass(frozen=True, slots=True)
class SystemReader:
    """Current rows of system tables, for one query.

    Args:
        log: The log that the tables describe.
        principal: The reader.
        cancel: Ends scans of dead letters.
        count: Counts rows and bytes of those scans.
    """

    log: "Log"
    principal: Principal
    cancel: Cancel
    count: ScanCount

    def table(self, name: str) -> bytes:
        """Return the rows of a table of metadata, as an IPC stream.

        Raises:
            InvalidSql: There is no such table.
        """
        table = SYSTEM_TABLES.get(name)
        if table is None:
            hint = suggested(name, SYSTEM_TABLES)
            raise InvalidSql(f"there is no system table {name!r:.80}{hint}")
        rows = _rows(table, self.log, self.principal)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return sink.getvalue().to_pybytes()

    def dead_letters(self, source: Topic | None) -> LettersTable:
        """Return the dead letters of a topic, or of all."""
        topics = self.principal.topics(self.log.admin, Right.READ)
        holding = [topic for topic in topics if is_of_letters(topic)]
        return LettersTable(self.log, holding, source, self.cancel, self.count)


def _rows(table: _Table, log: "Log", principal: Principal) -> pa.Table:
    fields = [table.schema.field(index) for index in range(len(table.schema))]
    columns = table.columns(log, principal) or [() for _ in fields]
    arrays = [_array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def _array(values: Sequence[Any], data_type: pa.DataType) -> Any:
    if data_type == _TIME:
        return pa.array(values, pa.int64()).cast(data_type)
    return pa.array(values, data_type)


def _turned(rows: Sequence[Sequence[Any]]) -> Columns:
    return list(zip(*rows, strict=True))


def _topics(log: "Log", principal: Principal) -> Columns:
    return _turned(
        [
            (
                str(topic.name),
                topic.uuid,
                topic.schema_version,
                topic.partition_key,
                json.dumps(topic.config.model_dump(mode="json")),
                topic.created_at,
            )
            for topic in principal.topics(log.admin, *DATA_RIGHTS)
        ]
    )


def _partitions(log: "Log", principal: Principal) -> Columns:
    return _of_topics(
        log, principal, log.registry.partition_states, len(SYSTEM_TABLES["partitions"].schema) - 1
    )


def _segments(log: "Log", principal: Principal) -> Columns:
    found = _of_topics(
        log, principal, log.maintenance.tier_states, len(SYSTEM_TABLES["segments"].schema) - 1
    )
    found[2] = ["remote" if is_remote else "hot" for is_remote in found[2]]
    return found


def _of_topics(
    log: "Log",
    principal: Principal,
    states_of: Callable[[str], Sequence[tuple[Any, ...]]],
    fields: int,
) -> list[list[Any]]:
    """Return topic names and the first `fields` fields of each of their states, as columns.

    Built by column, as rows are many: transposing them with `zip` takes four times as long.
    """
    columns: list[list[Any]] = [[] for _ in range(fields + 1)]
    for topic in principal.topics(log.admin, Right.READ):
        with suppress(NotFound):
            states = states_of(topic.uuid)
            columns[0] += repeat(str(topic.name), len(states))
            for index in range(fields):
                columns[index + 1] += map(itemgetter(index), states)
    return columns


def _consumers(log: "Log", principal: Principal) -> Columns:
    rows: list[tuple[Any, ...]] = []
    after: str | None = None
    while names := log.registry.list_consumers(CONSUMERS_AT_ONCE, after=after):
        after = names[-1]
        for name in names:
            rows += [
                (name, str(entry.topic), entry.partition, entry.offset, entry.committed_at)
                for entry in log.registry.get_offsets(name)
                if principal.may(Right.READ, str(entry.topic))
            ]
    return _turned(rows)


def _groups(log: "Log", principal: Principal) -> Columns:
    rows: list[tuple[Any, ...]] = []
    for namespace in log.admin.list_namespaces():
        if principal.may_see_namespace(namespace.name):
            with suppress(NotFound):
                rows += [
                    (
                        str(group.topic.name),
                        group.name,
                        json.dumps(group.config.model_dump(mode="json")),
                    )
                    for group in log.shares.of_namespace(namespace.name)
                    if principal.may(Right.SHARE, str(group.topic.name))
                ]
    return _turned(rows)


def _files(log: "Log", principal: Principal) -> Columns:
    known = log.metadata.tables.tables()
    rows: list[tuple[Any, ...]] = []
    for topic in principal.topics(log.admin, Right.READ):
        if topic.uuid in known:
            rows += [
                (
                    str(topic.name),
                    file.partition,
                    known[topic.uuid],
                    file.folio,
                    file.end_offset,
                    file.rows,
                    file.added,
                    file.removed,
                )
                for file in log.metadata.tables.segments(topic.uuid)
            ]
    return _turned(rows)


def _no_letters(log: "Log", principal: Principal) -> Columns:
    del log, principal  # Dead letters are scanned as topics are: see `SystemReader`.
    return []


def _nodes(log: "Log", principal: Principal) -> Columns:
    if not principal.is_operator:
        return []
    return _turned(
        [(node.flight, node.http, node.kafka or None, node.since) for node in log.live_nodes()]
    )


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(cast("Any", list(columns.items())))


SYSTEM_TABLES: Mapping[str, _Table] = {
    "topics": _Table(
        _schema(
            topic=_TEXT,
            uuid=_TEXT,
            schema_version=_NUMBER,
            partition_key=_TEXT,
            config=_TEXT,
            created_at=_TIME,
        ),
        _topics,
    ),
    "partitions": _Table(
        _schema(
            topic=_TEXT,
            partition=_TEXT,
            log_start_offset=_NUMBER,
            next_offset=_NUMBER,
            bytes=_NUMBER,
            last_timestamp=_TIME,
        ),
        _partitions,
    ),
    "segments": _Table(
        _schema(
            topic=_TEXT, partition=_TEXT, tier=_TEXT, pages=_NUMBER, rows=_NUMBER, bytes=_NUMBER
        ),
        _segments,
    ),
    "consumers": _Table(
        _schema(consumer=_TEXT, topic=_TEXT, partition=_TEXT, offset=_NUMBER, committed_at=_TIME),
        _consumers,
    ),
    "groups": _Table(_schema(topic=_TEXT, group=_TEXT, config=_TEXT), _groups),
    "dead_letters": _Table(LETTERS_SCHEMA, _no_letters),
    "files": _Table(
        _schema(
            topic=_TEXT,
            partition=_TEXT,
            identifier=_TEXT,
            file=_TEXT,
            end_offset=_NUMBER,
            rows=_NUMBER,
            added=_NUMBER,
            removed=_NUMBER,
        ),
        _files,
    ),
    "nodes": _Table(_schema(flight=_TEXT, http=_TEXT, kafka=_TEXT, since=_TIME), _nodes),
}
"""The system tables by name; the column `partition` has the key value as JSON text."""
