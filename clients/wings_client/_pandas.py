"""Data of pandas as Arrow has it; pandas is looked for among what the program has imported."""

import sys
from typing import Any

import pyarrow as pa

from wings_core.contracts.messages import shortened
from wings_core.errors import InvalidArgument, SchemaMismatch


def is_pandas(data: object, name: str) -> bool:
    """Tell whether data is of the class `name` of pandas."""
    # While another thread is still importing it, nothing of it can exist.
    found = getattr(sys.modules.get("pandas"), name, None)
    return found is not None and isinstance(data, found)


def frame_table(frame: Any, schema: pa.Schema | None = None) -> pa.Table:
    """Return a data frame as a table; its NaN is null.

    Levels of its index that have a name are columns after its own, as in a Parquet file of it. An
    index without a name numbers the rows, and is dropped.

    Args:
        frame: Frame of pandas.
        schema: The topic's that it is pushed to; None: any.

    Raises:
        SchemaMismatch: The topic has no column of the name of the index, or the frame has one.
        InvalidArgument: Arrow has no such columns.
    """
    names: list[object] = list(frame.index.names)
    named = [str(name) for name in names if name is not None]
    if not named:
        return _table(frame, preserve_index=False)
    columns = set(map(str, frame.columns))
    for name in named:
        problem = "is a column too" if name in columns else "is not a column of the topic"
        if name in columns or (schema is not None and name not in schema.names):
            raise SchemaMismatch(
                f"the index {name!r:.80} {problem}: frame.reset_index(drop=True) is without it",
                column=name,
            )
    table = _table(frame, preserve_index=True)
    unnamed = [f"__index_level_{level}__" for level, name in enumerate(names) if name is None]
    return table.drop_columns(unnamed)


def _table(frame: Any, *, preserve_index: bool) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=preserve_index)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        problem = ", ".join(map(str, error.args))
        raise InvalidArgument(
            shortened(f"the data frame cannot become a table of Arrow: {problem}")
        ) from None


def series_values(series: Any) -> Any:
    """Return the values of a series: an Arrow array, or a list where it has Python's objects."""
    if series.dtype == object:
        return list(series.where(series.notna(), None))
    return pa.array(series)
