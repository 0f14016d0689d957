"""Topics as datasets of Arrow, for DuckDB and others that hand a scanner their columns and filter.

The filter is applied here, by Arrow, always. Arrow shows an expression as text alone: those of its
parts that are simple comparisons in that text are the scan's filter too, so that most rows that it
drops are not sent.
"""

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.dataset

from wings_client._lazy import Open, comparison
from wings_client.arrow import RecordBatch, Schema

_datasets: Any = pyarrow.dataset

_PART = re.compile(r'\((\w+) (==|!=|<=?|>=?) (-?[0-9]{1,18}|"[^"\\]*"|true|false)\)')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')

_SIGNS = {"==": "=", "!=": "<>"}


class TopicDataset(_datasets.Dataset):
    """A dataset that reads what is committed anew for each query.

    Of `pyarrow.dataset.Dataset` it has what reads: `schema`, `scanner`, and what is made of that,
    such as `to_table`, `count_rows` and `write_dataset`. Nothing in Arrow's C++ stands behind it:
    `Scanner.from_dataset` and Acero's `ScanNodeOptions`, which ask for that, end the process.

    Args:
        schema: Schema of the rows.
        columns: The topic's own columns, which a filter on the server may use.
        open_scan: Opens the scan of a query.
    """

    def __init__(self, schema: Schema, columns: Schema, open_scan: Open) -> None:
        # Without super: there is no dataset in Arrow's C++ behind it.
        self._schema = schema
        self._columns = columns
        self._open_scan = open_scan

    @property
    def schema(self) -> Schema:
        """The schema of the rows."""
        return self._schema

    def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:  # noqa: A002
        """Return a scanner of some columns of the rows that pass a filter, to be read once.

        Args:
            columns: Names, or expressions by name; None: all.
            filter: An expression; None: all rows.
            options: Further ones of `pyarrow.dataset.Scanner.from_batches`.
        """
        names = self._schema.names
        text = "" if filter is None else str(filter)
        where = None if _has_bytes(filter) else sql_of(text, self._columns)
        if isinstance(columns, list):
            # A name that merely occurs in the text is read too.
            names = [name for name in names if name in columns or name in text] or names[:1]
        schema: Any = pa.schema([self._schema.field(name) for name in names])
        batches = self._batches(names, where)
        return _datasets.Scanner.from_batches(
            batches, schema=schema, columns=columns, filter=filter, **options
        )

    def _batches(self, names: list[str], where: str | None) -> Iterator[RecordBatch]:
        with self._open_scan(names, where) as scan:
            for batch in scan:
                yield _aligned(batch.select(names))

    def _without(self, *_: Any, **__: Any) -> NoReturn:
        """Raise NotImplementedError: it would need a dataset in Arrow's C++."""
        raise NotImplementedError("a topic has no files to look at: read it by scanner or to_table")

    partition_expression = property(_without)
    get_fragments = replace_schema = filter = join = join_asof = sort_by = _without


def _aligned(batch: RecordBatch) -> RecordBatch:
    """Return a copy of a batch whose buffers are aligned to their values.

    gRPC puts a message at any address. Arrow's scanner asks for aligned buffers, and otherwise
    writes a warning for each batch.
    """
    aligned: Any = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
    return aligned


def _has_bytes(expression: Any) -> bool:
    """Tell whether an expression has a value of bytes, which it shows like a text of digits."""
    if expression is None:
        return False
    _, (pickled,) = expression.__reduce__()  # A batch, whose columns are the values.
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(is_(kind) for kind in pa.ipc.open_file(pickled).schema.types for is_ in is_bytes)


def sql_of(text: str, columns: Schema) -> str | None:
    """Return SQL that passes all rows that an expression of Arrow passes; None: all rows.

    Args:
        text: The expression as Arrow shows it.
        columns: The columns that it may use.
    """
    if any(name in text and not re.fullmatch(r"\w+", name) for name in columns.names):
        return None  # The text may be read in more than one way.
    parts = [
        comparison(part[1], _SIGNS.get(part[2], part[2]), _value(part[3]), columns)
        for part in map(_PART.fullmatch, _conjuncts(text))
        if part is not None
    ]
    return " AND ".join(f"({part})" for part in parts if part is not None) or None


def _conjuncts(text: str) -> Iterator[str]:
    """Yield the texts of which all must be true."""
    # What stands in quotes is covered, so that only the expression's own words are left.
    bare = _QUOTED.sub(lambda found: "q" * len(found[0]), text)
    depth = 0
    for at, character in enumerate(bare):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            break
        if depth == 1 and bare.startswith(" and ", at) and bare.endswith(")"):
            yield from _conjuncts(text[1:at])
            yield from _conjuncts(text[at + len(" and ") : -1])
            return
    yield text


def _value(text: str) -> int | str | bool:
    if text.startswith('"'):
        return text[1:-1]
    return text == "true" if text in ("true", "false") else int(text)
