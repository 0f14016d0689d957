"""Salvaged rows of metadata apart from the log's index: namespaces, topics, and the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from wings_core.check import Problem
from wings_core.errors import WingsError
from wings_core.metadata.store.topics import schemas_of
from wings_core.model import Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.repair.salvage import Row, Salvaged
from wings_core.schemas import check_topic_schema

_DEFAULT_ID = 1
"""Id of the default namespace, which new metadata contains."""


@dataclass(slots=True)
class KeptTopics:
    """The namespaces and topics to keep."""

    namespaces: dict[int, Row] = field(default_factory=dict[int, Row])
    topics: dict[int, Topic] = field(default_factory=dict[int, Topic])
    """Topics that are not deleted, by id."""
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    """Rows of topics by id, remembered deleted ones included."""
    lost: list[Problem] = field(default_factory=list[Problem])
    rebuilt: list[str] = field(default_factory=list[str])
    """Topics that were rebuilt from other sources."""


def read_catalog(salvaged: Salvaged, noted: Sequence[Row] = ()) -> KeptTopics:
    """Return the namespaces and topics.

    Args:
        salvaged: The rows read from metadata.
        noted: Rows of topics from notes, with `tenant` and `namespace`; the last row of a topic is
            used.
    """
    catalog = KeptTopics()
    for row in salvaged.rows("namespaces"):
        catalog.namespaces[as_int(row["id"])] = row
    _read_topics(catalog, _rows(catalog, salvaged, noted))
    _report_lost(catalog, salvaged)
    return catalog


def _rows(catalog: KeptTopics, salvaged: Salvaged, noted: Sequence[Row]) -> dict[int, Row]:
    """Return the rows of topics by id; the noted row where metadata's is lost or in doubt."""
    rows = {as_int(row["id"]): row for row in salvaged.rows("topics")}
    doubted = {str(each.row.get("uuid")): each for each in salvaged.doubts}
    for row in noted:
        topic_id = as_int(row["id"])
        if topic_id in rows and str(row["uuid"]) not in doubted:
            continue
        if topic_id not in rows and _is_gone(salvaged, row):
            continue
        doubted.pop(str(row["uuid"]), None)
        catalog.rebuilt.append(f"topic {row['name']}: its row is from beside the segments")
        # Notes from before schema versions existed lack the column.
        rows[topic_id] = {"earlier_schemas": None, **row, "deleted_at": None, "purged_at": None}
        catalog.namespaces.setdefault(as_int(row["namespace_id"]), _namespace(row))
    catalog.lost += [
        Problem(f"the {doubt.column} of its row may be damaged: its copy differs", topic=uuid)
        for uuid, doubt in doubted.items()
    ]
    return rows


def _read_topics(catalog: KeptTopics, rows: Mapping[int, Row]) -> None:
    taken: set[tuple[object, object]] = set()
    for topic_id, row in sorted(rows.items(), reverse=True):
        if row["deleted_at"] is not None:
            catalog.rows[topic_id] = row
            continue
        name = row["namespace_id"], row["name"]
        if name in taken:  # The mark of its deletion is lost.
            message = "an earlier topic of this name is left out, and all its messages with it"
            catalog.lost.append(Problem(message, topic=str(row["name"])))
            continue
        taken.add(name)
        try:
            topic = _topic(row, _name_of_namespace(catalog, as_int(row["namespace_id"])))
        except (WingsError, pa.ArrowException, OSError, ValueError, TypeError) as error:
            message = f"its row cannot be read, and all its messages with it: {error}"
            catalog.lost.append(Problem(message, topic=str(row["name"])))
            continue
        catalog.topics[topic_id] = topic
        catalog.rows[topic_id] = row


def _report_lost(catalog: KeptTopics, salvaged: Salvaged) -> None:
    if not salvaged.is_complete("topics"):
        catalog.lost.append(Problem("topics may be missing without a trace"))
    for row in salvaged.lost("topics"):
        if row.get("id") not in catalog.rows and row.get("deleted_at") is None:
            message = "its row is lost, and all its messages with it"
            catalog.lost.append(Problem(message, topic=str(row.get("name") or row.get("uuid"))))
    for row in salvaged.lost("namespaces"):
        if row.get("id") not in catalog.namespaces:
            catalog.lost.append(Problem(f"namespace {row.get('tenant')}/{row.get('name')} is lost"))


def _name_of_namespace(catalog: KeptTopics, namespace_id: int) -> NamespaceName:
    """Return the name of a namespace; one whose row is lost gets a generated name."""
    row = catalog.namespaces.get(namespace_id)
    if row is None:
        name = DEFAULT_NAMESPACE
        if namespace_id != _DEFAULT_ID:
            name = NamespaceName(name.tenant, f"recovered-{namespace_id}")
            message = "the name of its namespace is lost: this one is generated"
            catalog.lost.append(Problem(message, topic=str(name)))
        row = {
            "id": namespace_id,
            "tenant": name.tenant,
            "name": name.namespace,
            "created_at": 0,
            "uuid": f"{namespace_id:032x}",
        }
        catalog.namespaces[namespace_id] = row
    return NamespaceName.parse(f"tenants/{row['tenant']}/namespaces/{row['name']}")


def _topic(row: Row, namespace: NamespaceName) -> Topic:
    schema, key = row["schema"], row["partition_key"]
    topic = Topic(
        name=namespace.topic(str(row["name"])),
        uuid=str(row["uuid"]),
        schema=pa.ipc.read_schema(pa.py_buffer(schema)),  # pyright: ignore[reportArgumentType] - its column is a BLOB
        partition_key=None if key is None else str(key),
        config=TopicConfig.model_validate_json(str(row["config"])),
        created_at=as_int(row["created_at"]),
        earlier_schemas=schemas_of(row.get("earlier_schemas")),  # pyright: ignore[reportArgumentType] - its column is a BLOB
    )
    for each in topic.schemas:
        check_topic_schema(each, topic.partition_key)
    return topic


def _namespace(row: Row) -> Row:
    return {
        "id": row["namespace_id"],
        "tenant": row["tenant"],
        "name": row["namespace"],
        "created_at": row["created_at"],
        "uuid": row["namespace_uuid"],
    }


def _is_gone(salvaged: Salvaged, row: Row) -> bool:
    """Return whether a noted topic is missing from metadata because it was deleted."""
    return salvaged.is_complete("topics") and not any(
        lost.get("uuid") == row["uuid"] for lost in salvaged.lost("topics")
    )


def as_int(value: object) -> int:
    """Return the value of an integer column; raises TypeError for any other."""
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is no number")
    return value


OF_THE_LOG = {"namespaces", "topics", "partitions", "pages", "folios", "inline_folios"}
"""Tables that other modules of this package rebuild."""

OF_STAGES = {"stages", "staged_pages"}

_MEANING = {
    "consumer_offsets": "the offset of a consumer is lost",
    "producers": "the state of an idempotent producer is lost: its retries may be duplicated",
    "producer_results": "a producer's result is lost: a retry cannot be answered",
    "partition_sequences": "a producer's numbers are lost: its retries may be duplicated",
    "transactions": "the epoch of a transactional producer is lost: an earlier one is not fenced",
    "transaction_offsets": "an offset of an open transaction is lost",
    "publishes": "the outcome of a publish is lost: a retry cannot be answered",
    "flushes": "the outcome of a node's flush is lost: a retry cannot be answered",
    "share_groups": "a share group is lost",
    "shards": "the progress of ingesting a file is lost: it may be ingested again",
    "shard_prunings": "the time of a source's pruning is lost",
    "tokens": "a token is lost: create it again",
    "token_changes": "the record of whether there were tokens is lost",
}

_SHOWN = ("consumer", "partition", "producer_id", "name", "writer", "source", "shard")
"""Columns by which a report identifies a lost row."""


@dataclass(slots=True)
class Rest:
    """Rows to keep of the remaining tables, and the losses."""

    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    stages: list[tuple[Row, list[Row]]] = field(default_factory=list[tuple[Row, list[Row]]])
    """Stages, each with its pages in order."""
    lost: list[Problem] = field(default_factory=list[Problem])
    had_tokens: bool = False
    """Whether there may have been tokens; if so, the log must not become open to everyone."""


def read_rest(salvaged: Salvaged, catalog: KeptTopics, folios: Mapping[int, str]) -> Rest:
    """Return the rows to keep apart from catalog and index.

    Args:
        salvaged: The rows read from metadata.
        catalog: The topics to keep; rows of others are dropped.
        folios: Names of files by id.
    """
    rest = Rest()
    for name, table in salvaged.tables.items():
        if name in OF_THE_LOG | OF_STAGES | {"identity"}:
            continue
        rest.rows[name] = [row for row in table.rows.values() if _is_kept(row, catalog)]
        rest.lost += [
            Problem(_meaning(name, row), topic=_topic_of(row, catalog))
            for row in table.lost
            if _is_kept(row, catalog)
        ]
        if table.problems:
            rest.lost.append(Problem(f"rows of {name} may be missing: {table.problems[0]}"))
    tokens = ("tokens", "token_changes")
    rest.had_tokens = any(
        salvaged.rows(name) or salvaged.lost(name) or not salvaged.is_complete(name)
        for name in tokens
    )
    _read_stages(rest, salvaged, catalog, folios)
    return rest


def _is_kept(row: Row, catalog: KeptTopics) -> bool:
    topic_id = row.get("topic_id")
    return topic_id is None or topic_id in catalog.topics


def _topic_of(row: Row, catalog: KeptTopics) -> str | None:
    topic_id = row.get("topic_id")
    return str(catalog.topics[as_int(topic_id)].name) if topic_id in catalog.topics else None


def _meaning(table: str, row: Row) -> str:
    shown = ", ".join(f"{column} {row[column]}" for column in _SHOWN if row.get(column) is not None)
    meaning = _MEANING.get(table, f"a row of {table} is lost")
    return f"{meaning}: {shown}" if shown else meaning


def _read_stages(
    rest: Rest, salvaged: Salvaged, catalog: KeptTopics, folios: Mapping[int, str]
) -> None:
    """Keep the stages whose pages are all present: a partial stage must never be published."""
    pages: dict[int, list[Row]] = {}
    for row in salvaged.rows("staged_pages"):
        pages.setdefault(as_int(row["stage_id"]), []).append(row)
    for stage in salvaged.rows("stages"):
        if stage["name"] is None or stage["topic_id"] not in catalog.topics:
            continue
        found = sorted(pages.get(as_int(stage["id"]), ()), key=lambda page: as_int(page["number"]))
        counted = (as_int(stage["pages"]), as_int(stage["rows"]), as_int(stage["bytes"]))
        known = [page for page in found if as_int(page["folio_id"]) in folios]
        sizes = (page["slice_bytes"] or page["length"] for page in known)
        there = (len(known), sum(as_int(page["rows"]) for page in known), sum(map(as_int, sizes)))
        numbers = [page["number"] for page in found]
        if counted == there and numbers == list(range(len(found))):
            rest.stages.append((stage, found))
        else:
            rest.lost.append(_lost_stage(stage, catalog))
    rest.lost += [
        _lost_stage(row, catalog) for row in salvaged.lost("stages") if row.get("name") is not None
    ]
    if not salvaged.is_complete("stages"):
        rest.lost.append(Problem("unpublished stages may be missing"))


def _lost_stage(row: Row, catalog: KeptTopics) -> Problem:
    message = "it is lost, as it is incomplete"
    return Problem(message, topic=_topic_of(row, catalog), stage=str(row.get("name")))
