"""Changes of schemas: columns are added at the end, widened, or made nullable.

So every schema version has the columns of the versions before it, in the same positions, with types
that hold all values of the earlier ones.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidSchema, suggested
from wings_core.model import Topic
from wings_core.schemas import check_topic_schema
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

SCHEMA_VERSIONS_MAX = 1_000
"""Most versions of one topic's schema, all of which are kept, as their pages stay readable."""

VERSIONS_BYTES_MAX = 32 << 20
"""Most bytes of earlier versions, which are read with every look-up of the topic."""

NO_COLUMNS = pa.schema([])


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A change of a topic's schema; changes already in effect are ignored."""

    add: pa.Schema = NO_COLUMNS
    """Columns to add at the end, in this order."""
    widen: pa.Schema = NO_COLUMNS
    """Existing columns with wider types."""
    nullable: tuple[str, ...] = ()
    """Columns to make nullable."""


def changed_schema(topic: Topic, change: SchemaChange) -> pa.Schema:
    """Return a topic's schema after a change; the same object if nothing changes.

    Raises:
        InvalidSchema: The change does not add, widen or make nullable (fact `column`), changes the
            key column, or leads to too many versions or columns.
    """
    columns = {field.name: field for field in fields_of(topic.schema)}
    before = dict(columns)
    _check_distinct(change.widen, "widened")
    _check_distinct(change.add, "added")
    for field in fields_of(change.widen):
        columns[field.name] = _widened(topic, before, field)
    for name in change.nullable:
        _check_there(topic, before, name)
        columns[name] = columns[name].with_nullable(True)
    for field in fields_of(change.add):
        _add(columns, field)
    changed = pa.schema(list(columns.values()))
    if changed.equals(topic.schema):
        return topic.schema
    if topic.schema_version >= SCHEMA_VERSIONS_MAX:
        raise InvalidSchema(f"the schema has {SCHEMA_VERSIONS_MAX} versions already")
    check_topic_schema(changed, topic.partition_key)
    return changed


def _check_distinct(fields: pa.Schema, what: str) -> None:
    seen: set[str] = set()
    for name in fields.names:
        if name in seen:
            raise _refused(name, f"is {what} twice")
        seen.add(name)


def _add(columns: dict[str, "ArrowField"], field: "ArrowField") -> None:
    known = columns.get(field.name)
    if known is None:
        if not field.nullable:
            raise _refused(field.name, "is added, so it must be nullable: rows before lack it")
        columns[field.name] = field
    elif not known.equals(field):
        null = "" if known.nullable else " not null"
        raise _refused(field.name, f"is there already, as {_shown(known.type)}{null}")


def _widened(topic: Topic, before: dict[str, "ArrowField"], field: "ArrowField") -> "ArrowField":
    _check_there(topic, before, field.name)
    known = before[field.name]
    if not known.type.equals(field.type) and not is_wider(known.type, field.type):
        raise _refused(
            field.name,
            f"is {_shown(known.type)}, which cannot become {_shown(field.type)}: integers and "
            "floats widen within their kind, decimals in precision at the same scale",
        )
    return known.with_type(field.type)


def _check_there(topic: Topic, before: dict[str, "ArrowField"], name: str) -> None:
    if name not in before:
        raise _refused(name, f"is not a column of the topic{suggested(name, before)}")
    if name == topic.partition_key:
        raise _refused(name, "is the partition key, which does not change")


def is_wider(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Return whether a column may be widened from one type to another."""
    for is_kind in (
        pa.types.is_signed_integer,
        pa.types.is_unsigned_integer,
        pa.types.is_floating,
    ):
        if is_kind(narrow) and is_kind(wide):
            return wide.bit_width > narrow.bit_width
    if isinstance(narrow, _DECIMALS) and isinstance(wide, _DECIMALS):
        return (
            wide.scale == narrow.scale
            and wide.precision > narrow.precision
            and wide.bit_width >= narrow.bit_width
        )
    return False


_DECIMALS = (pa.Decimal32Type, pa.Decimal64Type, pa.Decimal128Type, pa.Decimal256Type)


def _shown(data_type: pa.DataType) -> str:
    return type_name(data_type)[:80]


def _refused(column: str, why: str) -> InvalidSchema:
    return InvalidSchema(f"column {column!r:.80} {why}", column=column)
