"""Columns encoded in a path's folders, as by Hive and Spark: `day=2026-01-02/a.csv`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from wings_client.files.csv_values import not_of_type, values_of
from wings_core.errors import SchemaMismatch
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""Text of Hive and Spark for a null value."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A column whose single value is in a file's path."""

    name: str
    text: str | None
    type: pa.DataType = pa.string()  # noqa: RUF009 - Types are constants.
    """Type of the column, if no topic defines it."""

    def value(self, field: "ArrowField") -> Any:
        """Return the value in a topic's type.

        Raises:
            SchemaMismatch: The text is not a value of this type, or null for a non-nullable column.
        """
        if self.text is None and not field.nullable:
            problem = "is null in its path, but not nullable in the topic"
            raise SchemaMismatch(f"{self.name!r:.80} {problem}", column=self.name)
        try:
            return values_of(pa.array([self.text], pa.string()), field.type)[0]
        except (pa.ArrowException, ValueError) as error:
            problem = not_of_type(self.text or "", type_name(field.type), str(error))
            raise SchemaMismatch(
                f"column {self.name!r:.80} of its path: {problem}", column=self.name
            ) from None


def folder_values(path: str) -> dict[str, str | None]:
    """Return the values of a path's folders `NAME=VALUE`; the last of each name."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals:
            found[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return found


def folders_of(paths: Iterable[str]) -> list[tuple[Folder, ...]]:
    """Return the columns in the folders of files, with the same types for all files."""
    found = [folder_values(path) for path in paths]
    types = {
        name: _type_of(pa.array([each[name] for each in found if name in each], pa.string()))
        for name in {name for each in found for name in each}
    }
    return [tuple(Folder(name, text, types[name]) for name, text in each.items()) for each in found]


def _type_of(texts: Any) -> pa.DataType:
    """Return a type that preserves all texts."""
    for data_type in (pa.int64(), pa.date32()):
        try:
            if values_of(texts, data_type).cast(pa.string()).equals(texts):
                return data_type
        except (pa.ArrowException, ValueError):
            continue
    return pa.string()
