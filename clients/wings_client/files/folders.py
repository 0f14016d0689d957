"""Columns that the folders of a path tell, as Hive and Spark write them: `day=2026-01-02/a.csv`."""

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
"""What Hive and Spark write for a value that is null."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A column whose one value is in a file's path."""

    name: str
    text: str | None
    type: pa.DataType = pa.string()  # noqa: RUF009 - Types are constants.
    """Of the column, where no topic says it."""

    def value(self, field: "ArrowField") -> Any:
        """Return the value, of a topic's type.

        Raises:
            SchemaMismatch: It is none of this type, or null where the column must not be.
        """
        if self.text is None and not field.nullable:
            problem = "is null in its path, and must not be in the topic"
            raise SchemaMismatch(f"{self.name!r:.80} {problem}", column=self.name)
        try:
            return values_of(pa.array([self.text], pa.string()), field.type)[0]
        except (pa.ArrowException, ValueError) as error:
            problem = not_of_type(self.text or "", type_name(field.type), str(error))
            raise SchemaMismatch(
                f"column {self.name!r:.80} of its path: {problem}", column=self.name
            ) from None


def folder_values(path: str) -> dict[str, str | None]:
    """Return the values of `NAME=VALUE` among the folders of a file, the last of each name."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals:
            found[unquote(name)] = None if value == HIVE_NULL else unquote(value)
    return found


def folders_of(paths: Iterable[str]) -> list[tuple[Folder, ...]]:
    """Return the columns that the folders of files tell, of the same types for all files."""
    found = [folder_values(path) for path in paths]
    types = {
        name: _type_of(pa.array([each[name] for each in found if name in each], pa.string()))
        for name in {name for each in found for name in each}
    }
    return [tuple(Folder(name, text, types[name]) for name, text in each.items()) for each in found]


def _type_of(texts: Any) -> pa.DataType:
    """Return a type by which all texts are written again as they are."""
    for data_type in (pa.int64(), pa.date32()):
        try:
            if values_of(texts, data_type).cast(pa.string()).equals(texts):
                return data_type
        except (pa.ArrowException, ValueError):
            continue
    return pa.string()
