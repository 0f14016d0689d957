"""The check of a write's schema against a topic's, before any row is written.

Columns are matched by name, in any order. Values are checked as they are written: for overflow,
times finer than the topic's, and nulls in required columns (Spark declares almost every column
nullable).
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from wings_client import Topic
from wings_core.arrow_types import fields_of
from wings_core.cast import Conversion, conversion, wanted_fields
from wings_core.contracts.messages import shortened
from wings_core.errors import SchemaMismatch
from wings_core.type_names import type_name


def check_write_schema(schema: pa.Schema, topic: Topic) -> None:
    """Check that rows of a schema can be appended to a topic.

    Raises:
        SchemaMismatch: The rows do not fit; the message names every column at fault, the fact
            `column` the first.
    """
    names: list[str] = schema.names
    wanted = [field.name for field in wanted_fields(names, topic.schema)]
    twice = sorted({name for name in names if names.count(name) > 1})
    missing = [name for name in wanted if name not in names]
    extra = [name for name in names if name not in wanted]
    mistyped = dict(_mistyped(schema, topic.schema)) if not twice else {}
    problems = [
        f"{what}: {_shown(found)}"
        for what, found in (
            ("columns that are there twice", twice),
            ("columns that are missing", missing),
            ("columns that the topic does not have", extra),
            ("columns whose type cannot become the topic's", mistyped.values()),
        )
        if found
    ]
    if not problems:
        return
    if {name.lower() for name in topic.schema.names} & {name.lower() for name in extra}:
        problems.append("upper and lower case differ")
    raise SchemaMismatch(
        shortened(f"the rows do not fit topic {topic.id}: {'; '.join(problems)}"),
        column=[*twice, *missing, *extra, *mistyped][0],
    )


def _mistyped(schema: pa.Schema, wanted: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield name and description of each column whose type cannot be converted to the topic's."""
    found = {field.name: field for field in fields_of(schema)}
    for field in fields_of(wanted):
        source = found.get(field.name)
        if source is None:
            continue
        name = f"{field.name!r:.80}"
        if conversion(source.type, field.type) is Conversion.NONE:
            kinds = f"{type_name(source.type):.100}, the topic's {type_name(field.type):.100}"
            yield field.name, f"{name} ({kinds})"
        elif pa.types.is_null(source.type) and not field.nullable:
            yield field.name, f"{name} (nothing but nulls, the topic's has none)"


def _shown(found: Iterable[str]) -> str:
    return ", ".join(text if "(" in text else f"{text!r:.80}" for text in found)
