"""The snapshot that a query reads: the offsets of its topics' partitions when it starts.

Listing very many partitions takes long. Where the text of a statement restricts the key to given
values, only those partitions are looked up.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from wings_core.errors import InvalidArgument
from wings_core.fetch.selection import PARTITION_FIELD
from wings_core.model import PartitionState, Topic
from wings_core.partitions import Partition, canonical_partition, partition_of
from wings_core.sql.parameters import Parameters, named
from wings_core.sql.statement import Statement
from wings_core.sql.topic_table import shown

if TYPE_CHECKING:
    from wings_core.log import Log

LOOKS_MAX = 8
"""Most attempts to read the ends of several topics without a commit in between."""

PARTITIONS_MAX = 1_000
"""Most key values that are looked up one by one; with more, all partitions are listed."""

_INTEGER = re.compile(r"-?[0-9]{1,20}")

_Node = Mapping[str, Any]


def states_of(
    log: "Log", topics: Sequence[Topic], wanted: frozenset[Partition] | None
) -> Mapping[str, Sequence[PartitionState]]:
    """Return the partition states of topics by their UUIDs, all from one moment.

    Several topics are read until two reads in a row agree: both held at all moments between them.

    Args:
        log: The log with the topics.
        topics: Topics, without duplicates.
        wanted: The partitions to look up, for a single topic; None for all.
    """
    if wanted is not None:
        (topic,) = topics
        positions = [(partition, 0) for partition in sorted(wanted)]
        located = log.registry.locate_many(topic.uuid, positions, 0) if positions else []
        return {topic.uuid: [each.state for each in located]}
    found: Mapping[str, Sequence[PartitionState]] = {}
    for _ in range(LOOKS_MAX):
        before, found = (
            found,
            {topic.uuid: log.registry.partition_states(topic.uuid) for topic in topics},
        )
        if len(topics) < 2 or found == before:
            break
    return found


def looked_up(
    statement: Statement, parameters: Parameters, topic: Topic
) -> frozenset[Partition] | None:
    """Return the only partitions that can contribute rows; None where any can.

    Args:
        statement: A statement that reads this topic only.
        parameters: The values of its parameters.
        topic: The topic.
    """
    root = statement.root
    if statement.references != 1 or root["type"] != "SELECT_NODE" or root["cte_map"]["map"]:
        return None
    source = root["from_table"]
    if source["type"] != "BASE_TABLE" or source["column_name_alias"]:
        return None
    given = named(parameters)
    for condition in _conditions(root["where_clause"]):
        found = _partitions(condition, given, topic)
        if found is not None:
            return found
    return None


def _partitions(
    condition: _Node, given: Mapping[str, Any], topic: Topic
) -> frozenset[Partition] | None:
    """Return the partitions that `column = value` or `column IN (values)` selects."""
    if condition["type"] == "COMPARE_EQUAL":
        column, *values = condition["left"], condition["right"]
        if column["class"] != "COLUMN_REF":
            column, values = condition["right"], [column]
    elif condition["type"] == "COMPARE_IN":
        column, *values = condition["children"]
    else:
        return None
    # A name of two parts may refer to a field of a column.
    if column["class"] != "COLUMN_REF" or len(column["column_names"]) != 1:
        return None
    if len(values) > PARTITIONS_MAX:
        return None
    name = str(column["column_names"][0]).lower()
    found = [_value_of(value, given) for value in values]
    if name == PARTITION_FIELD.name:
        texts = [value for value in found if isinstance(value, str)]
        return _of_texts(texts) if len(texts) == len(found) else None
    key = topic.partition_key
    if key is None or name != key.lower() or key not in shown(topic).columns:
        return None
    key_type: Any = topic.key_type
    try:
        return frozenset(partition_of(_compared(each, key_type), key_type) for each in found)
    except InvalidArgument:
        return None


def _of_texts(texts: Sequence[str]) -> frozenset[Partition]:
    """Return the partitions that texts denote; other texts match no partition."""
    partitions: set[Partition] = set()
    for text in texts:
        with suppress(InvalidArgument):
            partitions.add(canonical_partition(text))
    return frozenset(partitions)


def _conditions(node: _Node | None) -> Iterator[_Node]:
    """Yield the conditions that every row must satisfy (the terms of an AND)."""
    if node is not None and node["type"] == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _conditions(child)
    elif node is not None:
        yield node


def _value_of(node: _Node, given: Mapping[str, Any]) -> Any:
    """Return the value of a constant or parameter, a string or an integer; None for others."""
    if node["class"] == "PARAMETER":
        return given.get(str(node["identifier"]))
    if node["class"] != "CONSTANT":
        return None
    kind, text = node["literal"]["kind"], node["literal"].get("text")
    if kind == "STRING":
        return text
    return int(text) if kind == "INTEGER" and _INTEGER.fullmatch(text) else None


def _compared(value: Any, data_type: pa.DataType) -> int | str | None:
    """Return a value as a column of `data_type` compares it; None where that is unknown."""
    if isinstance(value, bool):
        return None
    if pa.types.is_integer(data_type):
        if isinstance(value, str):  # SQL casts it; drivers send all values as texts.
            return int(value) if _INTEGER.fullmatch(value) else None
        return value if isinstance(value, int) else None
    is_text = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    return value if is_text and isinstance(value, str) else None
