"""Namespaces and topics, as far as they are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from wings_core.check import Problem
from wings_core.errors import WingsError
from wings_core.metadata.store.topics import schemas_of
from wings_core.model import Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.repair.salvage import Salvaged
from wings_core.repair.shapes import Row
from wings_core.schemas import check_topic_schema

_DEFAULT_ID = 1
"""Of the default namespace, which comes with the tables."""


@dataclass(slots=True)
class Catalog:
    """Namespaces and topics that are kept."""

    namespaces: dict[int, Row] = field(default_factory=dict[int, Row])
    topics: dict[int, Topic] = field(default_factory=dict[int, Topic])
    """By id; those that were not deleted."""
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    """Of topics, with those that were deleted and are still remembered."""
    lost: list[Problem] = field(default_factory=list[Problem])
    rebuilt: list[str] = field(default_factory=list[str])
    """What was found out of other parts."""


def read_catalog(salvaged: Salvaged, noted: Sequence[Row] = ()) -> Catalog:
    """Return the namespaces and topics.

    Args:
        salvaged: What was found of metadata.
        noted: Rows of topics from elsewhere, with `tenant` and `namespace`; the last of a topic
            counts.
    """
    catalog = Catalog()
    for row in salvaged.rows("namespaces"):
        catalog.namespaces[as_int(row["id"])] = row
    _read_topics(catalog, _rows(catalog, salvaged, noted))
    _report_lost(catalog, salvaged)
    return catalog


def _rows(catalog: Catalog, salvaged: Salvaged, noted: Sequence[Row]) -> dict[int, Row]:
    """Return the rows of topics by id: where metadata's is lost or in doubt, the noted one."""
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
        # Notes of before there were versions tell of no earlier ones.
        rows[topic_id] = {"earlier_schemas": None, **row, "deleted_at": None, "purged_at": None}
        catalog.namespaces.setdefault(as_int(row["namespace_id"]), _namespace(row))
    catalog.lost += [
        Problem(f"the {doubt.column} of its row may be damaged: its copy differs", topic=uuid)
        for uuid, doubt in doubted.items()
    ]
    return rows


def _read_topics(catalog: Catalog, rows: Mapping[int, Row]) -> None:
    taken: set[tuple[object, object]] = set()
    for topic_id, row in sorted(rows.items(), reverse=True):
        if row["deleted_at"] is not None:
            catalog.rows[topic_id] = row
            continue
        name = row["namespace_id"], row["name"]
        if name in taken:  # What says that it was deleted is lost.
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


def _report_lost(catalog: Catalog, salvaged: Salvaged) -> None:
    if not salvaged.is_complete("topics"):
        catalog.lost.append(Problem("topics may be missing of which nothing is left"))
    for row in salvaged.lost("topics"):
        if row.get("id") not in catalog.rows and row.get("deleted_at") is None:
            message = "its row is lost, and all its messages with it"
            catalog.lost.append(Problem(message, topic=str(row.get("name") or row.get("uuid"))))
    for row in salvaged.lost("namespaces"):
        if row.get("id") not in catalog.namespaces:
            catalog.lost.append(Problem(f"namespace {row.get('tenant')}/{row.get('name')} is lost"))


def _name_of_namespace(catalog: Catalog, namespace_id: int) -> NamespaceName:
    """Return the name of a namespace; one whose row is lost gets another."""
    row = catalog.namespaces.get(namespace_id)
    if row is None:
        name = DEFAULT_NAMESPACE
        if namespace_id != _DEFAULT_ID:
            name = NamespaceName(name.tenant, f"recovered-{namespace_id}")
            message = "the name of its namespace is lost: this one is made up"
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
    """Tell whether a topic that was noted is not in metadata as it was deleted."""
    return salvaged.is_complete("topics") and not any(
        lost.get("uuid") == row["uuid"] for lost in salvaged.lost("topics")
    )


def as_int(value: object) -> int:
    """Return a value of a column of numbers."""
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is no number")
    return value
