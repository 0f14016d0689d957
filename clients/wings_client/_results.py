"""Results as tables, data frames and HTML, for `_model` and the others that hold batches."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol, cast

import pyarrow as pa

from wings_client.arrow import RecordBatch, Schema, Table
from wings_core.arrow_types import fields_of
from wings_core.type_names import type_name

HTML_ROWS_MAX = 10
"""Rows that a notebook shows of a result."""

HTML_TEXT_MAX = 100
"""Characters that it shows of a value, or of a type."""


class HasBatch(Protocol):
    """Columns of one batch."""

    @property
    def batch(self) -> RecordBatch:
        """Its rows."""
        ...


class BatchViews:
    """The rows of something of one batch as tables, data frames and streams."""

    __slots__ = ()

    def to_arrow(self: HasBatch) -> Table:
        """Return the rows as a table, without a copy."""
        return _table_of(self)

    def to_pandas(self: HasBatch) -> Any:
        """Return the rows as a data frame of pandas.

        Raises:
            ImportError: pandas is not installed.
        """
        return pandas_of(_table_of(self))

    def to_polars(self: HasBatch) -> Any:
        """Return the rows as a data frame of Polars.

        Raises:
            ImportError: Polars is not installed.
        """
        return polars_of(_table_of(self))

    def __arrow_c_array__(self: HasBatch, requested_schema: object = None) -> tuple[object, object]:
        """Export the batch by Arrow's PyCapsule interface."""
        return cast("Any", self.batch).__arrow_c_array__(requested_schema)

    def __arrow_c_stream__(self: HasBatch, requested_schema: object = None) -> object:
        """Export the batch as a stream of one, by Arrow's PyCapsule interface."""
        return cast("Any", _table_of(self)).__arrow_c_stream__(requested_schema)


def _table_of(found: HasBatch) -> Table:
    return Table.from_batches([found.batch])


def pandas_of(table: pa.Table) -> Any:
    """Return a table as a data frame of pandas; see `to_pandas`."""
    if find_spec("pandas") is None:  # pyarrow's own error does not say how to get it.
        raise _missing("pandas", "to_pandas")
    return cast("Any", table).to_pandas()


def polars_of(table: pa.Table) -> Any:
    """Return a table as a data frame of Polars; see `to_polars`."""
    try:
        import polars
    except ImportError as error:
        raise _missing("polars", "to_polars") from error
    return polars.DataFrame(table)


def _missing(package: str, method: str) -> ImportError:
    return ImportError(
        f"{method}() needs {package}: install it, or wings-flight[{package}]", name=package
    )


def table_html(table: pa.Table, caption: str) -> str:
    """Return the schema and the first rows of a table as HTML, every text escaped."""
    from html import escape

    def cell(kind: str, text: str) -> str:
        cut = text if len(text) <= HTML_TEXT_MAX else text[: HTML_TEXT_MAX - 1] + "…"
        return f"<{kind}>{escape(cut)}</{kind}>"

    def row(kind: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(kind, text) for text in texts) + "</tr>"

    fields = fields_of(table.schema)
    heads = row("th", [field.name for field in fields])
    types = row("td", [_type_text(field) for field in fields])
    shown = [cast("Any", column).slice(0, HTML_ROWS_MAX) for column in table.columns]
    # Through text of Arrow, as not all values are ones of Python.
    rows = "".join(
        row("td", [_value_text(column[index]) for column in shown])
        for index in range(min(table.num_rows, HTML_ROWS_MAX))
    )
    left_out = table.num_rows - HTML_ROWS_MAX
    more = f"<p>… {left_out:,} more rows</p>" if left_out > 0 else ""
    return (
        f"<p>{escape(caption)}</p><table><thead>{heads}{types}</thead>"
        f"<tbody>{rows}</tbody></table>{more}"
    )


def batch_html(name: str, batch: RecordBatch, offsets: str) -> str:
    """Return a batch as HTML, under its offsets."""
    caption = f"{name}: {batch.num_rows:,} rows, {offsets}"
    return table_html(Table.from_batches([batch]), caption)


def schema_text(schema: Schema) -> str:
    """Return the columns of a schema with their types, on one line."""
    return ", ".join(f"{field.name}: {_type_text(field)}" for field in fields_of(schema))


def _type_text(field: Any) -> str:
    return type_name(field.type) + ("" if field.nullable else " not null")


def _value_text(value: Any) -> str:
    try:
        return str(value.as_py())
    except (ValueError, OverflowError):  # Of times that Python has not.
        return str(value)
