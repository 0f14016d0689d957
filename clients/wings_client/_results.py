"""Results as tables, data frames and HTML, reads of rows on demand, and progress in a notebook.

No package is needed for it: outside of a kernel of Jupyter batches pass as they are.
"""

import io
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

import pyarrow as pa

from wings_client._errors import copy_of
from wings_client.arrow import RecordBatch, RecordBatchReader, Schema, Table
from wings_core.arrow_types import fields_of
from wings_core.errors import InvalidArgument, WingsError
from wings_core.type_names import type_name

HTML_ROWS_MAX = 10
"""Rows that a notebook shows of a result."""

HTML_TEXT_MAX = 100
"""Characters that it shows of a value, or of a type."""

CLOSED = "the result is closed: its rows are read before"

T = TypeVar("T")

SHOWN_AFTER_SECONDS = 2.0
"""Seconds below which nothing is displayed, unless the variable says otherwise."""

VARIABLE = "WINGS_PROGRESS_SECONDS"
"""Variable of the environment: seconds after which progress is displayed; `inf`: never."""

SECONDS_BETWEEN = 0.25
"""Seconds between two updates."""


class Result:
    """Rows of one schema as a table, a data frame or a stream."""

    __slots__ = ()

    @abstractmethod
    def to_arrow(self) -> Table:
        """Return the rows as a table, without a copy."""
        ...

    def to_pandas(self) -> Any:
        """Return the rows as a data frame of pandas.

        Raises:
            ImportError: pandas is not installed.
        """
        return pandas_of(self.to_arrow())

    def to_polars(self) -> Any:
        """Return the rows as a data frame of Polars.

        Raises:
            ImportError: Polars is not installed.
        """
        return polars_of(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return the rows as a relation of DuckDB, which can be queried any number of times.

        Args:
            connection: DuckDB's; None: its default one.

        Raises:
            ImportError: DuckDB is not installed.
        """
        duckdb = tool("duckdb", "to_duckdb")
        return (duckdb if connection is None else connection).from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows by Arrow's PyCapsule interface, for DuckDB, Polars and others."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        """Return what there is of it, without the rows."""
        return f"{type(self).__name__}({self._where})"

    def _repr_html_(self) -> str:
        """Return the first rows, for a notebook."""
        return table_html(self.to_arrow(), self._caption)

    @property
    @abstractmethod
    def _where(self) -> str:
        """Text of what there is of it, without the rows."""
        ...

    @property
    def _caption(self) -> str:
        return f"{type(self).__name__}: {self._where}"


class BatchViews(Result):
    """A result of one batch, its attribute `batch`."""

    __slots__ = ()

    def to_arrow(self) -> Table:
        """Return the rows as a table, without a copy."""
        return Table.from_batches([cast("Any", self).batch])

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Export the batch by Arrow's PyCapsule interface."""
        return cast("Any", self).batch.__arrow_c_array__(requested_schema)


class StreamResult(Result):
    """A result whose rows come as they are asked for, each once.

    A call that needs all rows, like `to_arrow`, reads those that were not iterated over before, and
    keeps them: the next such call has the same.
    """

    schema: Schema
    _table: Table | None = None

    @abstractmethod
    def _batches_left(self) -> Iterator[RecordBatch]:
        """Return an iterator of the rows that were not read yet."""

    def to_arrow(self) -> Table:
        """Return the rows that were not iterated over as one table, which is kept; blocks.

        Raises:
            WingsError: As iterating does.
        """
        self.check_bounded()
        return self.keep(self._batches_left()) if self._table is None else self._table

    def check_bounded(self) -> None:
        """Raise `InvalidArgument` where the rows have no end."""

    def keep(self, batches: Iterable[RecordBatch]) -> Table:
        """Keep these rows, read by another face of the result, as all that are left."""
        self._table = Table.from_batches(batches, self.schema)
        return self._table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows by Arrow's PyCapsule interface: those to come, unless they are kept.

        Its reader waits as iterating does.
        """
        if self._table is not None:
            return self._table.__arrow_c_stream__(requested_schema)
        reader = RecordBatchReader.from_batches(self.schema, self._batches_left())
        return cast("Any", reader).__arrow_c_stream__(requested_schema)

    def html(self) -> str:
        """Return the columns, and the first rows if they are kept, as HTML; does not block."""
        return table_html(self._table or self.schema.empty_table(), self._caption)

    def _repr_html_(self) -> str:
        """Return `html()`, for a notebook."""
        return self.html()


class Read(ABC):
    """A read that has begun; its streams are opened when its rows are asked for.

    Attributes:
        schema: Schema of the rows.
        rows: How many rows there are; None: its end tells.
        streams: How many of its sources are worth being read at once.
    """

    kind: ClassVar[str]
    schema: Schema
    rows: int | None = None
    streams: int = 1

    @abstractmethod
    def batches(self) -> Generator[RecordBatch]:
        """Yield the rows; closing the generator ends the read on the server."""

    def sources(self) -> Sequence[Iterable[RecordBatch]]:
        """Return the parts that threads may read at once, to be used instead of `batches`."""
        return [self.batches()]

    @abstractmethod
    def cancel(self) -> None:
        """End the read; from any thread, does not block."""


if TYPE_CHECKING:
    _Reader = RecordBatchReader
else:
    _Reader = pa.ipc.RecordBatchStreamReader


class ReadResult(StreamResult, _Reader):  # pyright: ignore[reportIncompatibleMethodOverride]
    """Rows of a scan, a statement or a snapshot: a `pyarrow.RecordBatchReader`, and a result.

    Iterating yields batches, each once. A call that needs all rows, like `to_arrow`, reads those
    that were not iterated over before, and keeps them: the next such call has the same, and so has
    a loop. The read on the server ends with the last row, with `close`, and when the result is
    garbage-collected. For one thread.

    Code that takes nothing but pyarrow's own class finds the rows encoded once more, as a stream of
    IPC: give it `to_arrow()` where they fit into memory.
    """

    def __init__(self, read: Read) -> None:
        self.read = read
        self._rows = _Rows(read)
        begin: Any = super().__init__
        begin(_Encoded(read.schema, self._rows))

    @property
    def schema(self) -> Schema:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Schema of the batches."""
        return self.read.schema

    def __iter__(self) -> Iterator[RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the batches: those to come, or all if they are kept."""
        return self if self._table is None else iter(self._table.to_batches())

    def __next__(self) -> RecordBatch:
        """Return the next batch; blocks until it is there.

        Raises:
            StopIteration: There is none.
            InvalidArgument: The result was closed.
            WingsError: The server's refusal, or `Unavailable`.
        """
        return next(self._rows)

    def __len__(self) -> int:
        """Return how many rows the result has, if that is known before its end.

        Raises:
            TypeError: It is not: `to_arrow` reads them.
        """
        rows = self.read.rows if self._table is None else self._table.num_rows
        if rows is None:
            raise TypeError(f"only the end of a {self.read.kind} tells its rows: see to_arrow()")
        return rows

    def __bool__(self) -> bool:
        """Return True, also without rows."""
        return True

    def read_next_batch(self) -> RecordBatch:
        """Return the next batch, like `next`."""
        return next(self._rows)

    def read_all(self) -> Table:
        """Return `to_arrow()`."""
        return self.to_arrow()

    def read_pandas(self, **options: Any) -> Any:
        """Return the rows as a data frame of pandas, by the options of `Table.to_pandas`."""
        return pandas_of(self.to_arrow(), **options)

    def close(self) -> None:
        """End the read on the server too; rows that are kept stay."""
        self._rows.close()

    def __enter__(self) -> Self:
        """Return the result itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the result."""
        self.close()

    def _batches_left(self) -> Iterator[RecordBatch]:
        return self._rows

    def _repr_html_(self) -> str:
        """Return the first rows to come, for a notebook; they are read, and stay to be iterated."""
        if self._table is not None:
            return self.html()
        first = Table.from_batches(self._rows.first(HTML_ROWS_MAX), self.schema)
        return table_html(first, self._caption, is_all=self._rows.is_at_end)

    @property
    def _where(self) -> str:
        if self._table is None and self.read.rows is None:
            return self.read.kind
        return f"{self.read.kind} of {len(self):,} rows"


class Unended(Iterator[T], Generic[T]):
    """The items of a generator; once that has failed, each call fails, and none is its end."""

    def __init__(self, items: Generator[T]) -> None:
        self._items = items
        self._failed: WingsError | None = None

    def __next__(self) -> T:
        if self._failed is not None:
            raise copy_of(self._failed)
        try:
            return next(self._items)
        except StopIteration:
            raise
        except WingsError as error:
            self._failed = copy_of(error)
            raise
        except BaseException:
            self._failed = InvalidArgument("the read has failed: begin another")
            raise

    def close(self) -> None:
        """Close the generator."""
        self._items.close()


class _Rows(Iterator[RecordBatch]):
    """The batches of a read that are still to come, some of them read ahead."""

    def __init__(self, read: Read) -> None:
        self.is_at_end = False
        self._read = read
        self._batches = Unended(read.batches())
        self._ahead: deque[RecordBatch] = deque()
        self._closed = False

    def __next__(self) -> RecordBatch:
        if self._closed:
            raise InvalidArgument(CLOSED)
        return self._ahead.popleft() if self._ahead else next(self._batches)

    def first(self, rows: int) -> Sequence[RecordBatch]:
        """Return batches with the next rows, at least so many if there are, without taking them."""
        while not self._closed and sum(batch.num_rows for batch in self._ahead) < rows:
            batch = next(self._batches, None)
            if batch is None:
                self.is_at_end = True
                break
            self._ahead.append(batch)
        return tuple(self._ahead)

    def close(self) -> None:
        """End the read."""
        if not self._closed:
            self._closed = True
            self._ahead.clear()
            self._batches.close()
            self._read.cancel()  # A generator that was not begun ends nothing.


class _Encoded(io.RawIOBase):
    """Batches as a stream of IPC, each encoded when it is read.

    A subclass of pyarrow's reader gets a reader of C++ from such a stream alone.
    """

    def __init__(self, schema: Schema, batches: Iterator[RecordBatch]) -> None:
        self._schema = schema
        self._batches = batches
        self._left = pa.BufferReader(cast("Any", schema).serialize())
        self._header_bytes = self._left.size()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> Any:
        found = self._left.read_buffer(size)
        # Reads end where a message does, and so with a batch.
        if size and not found.size and (batch := next(self._batches, None)) is not None:
            sink = pa.BufferOutputStream()
            pa.ipc.new_stream(sink, self._schema).write_batch(batch)
            self._left = pa.BufferReader(sink.getvalue().slice(self._header_bytes))
            found = self._left.read_buffer(size)
        return found


def pandas_of(table: pa.Table, **options: Any) -> Any:
    """Return a table as a data frame of pandas; see `to_pandas`."""
    tool("pandas", "to_pandas")  # pyarrow's own error does not say how to get it.
    return cast("Any", table).to_pandas(**options)


def polars_of(table: pa.Table) -> Any:
    """Return a table as a data frame of Polars; see `to_polars`."""
    return tool("polars", "to_polars").DataFrame(table)


def tool(package: str, method: str) -> Any:
    """Return an optional package.

    Raises:
        ImportError: It is not installed; the text names the extra that brings it.
    """
    if find_spec(package) is None:
        raise ImportError(
            f"{method}() needs {package}: install it, or wings-flight[{package}]", name=package
        )
    return import_module(package)


def table_html(table: pa.Table, caption: str, *, is_all: bool = True) -> str:
    """Return the schema and the first rows of a table as HTML, every text escaped.

    Args:
        table: The rows, or the first of them.
        caption: Text above them.
        is_all: Whether there are no further rows.
    """
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
    if not is_all:
        more = "<p>… more rows</p>"
    return (
        f"<p>{escape(caption)}</p><table><thead>{heads}{types}</thead>"
        f"<tbody>{rows}</tbody></table>{more}"
    )


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


def in_notebook() -> bool:
    """Tell whether a kernel of Jupyter runs this."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def rows_known(data: Any) -> int | None:
    """Return how many rows a table or a data frame has; None: only its end tells."""
    found = getattr(data, "num_rows", None)
    if found is None:
        found = (getattr(data, "shape", None) or (None,))[0]
    return found if isinstance(found, int) else None


def counted(batches: Iterable[RecordBatch], what: str, total: int | None) -> Generator[RecordBatch]:
    """Yield batches, and display in a notebook how many of their rows have passed.

    The display is updated as batches are asked for, and removed at the end.

    Args:
        batches: Rows that are sent or read.
        what: Name of the work, like `push to orders`.
        total: Rows in all; None: not known.
    """
    from IPython.display import display  # pyright: ignore[reportMissingModuleSource]

    started = time.monotonic()
    due = started + _shown_after()
    place: Any = None
    rows = 0
    try:
        for batch in batches:
            yield batch
            rows += batch.num_rows
            now = time.monotonic()
            if now >= due:
                shown = _shown(what, rows, total, now - started)
                if place is None:
                    place = display(shown, raw=True, display_id=True)
                else:
                    place.update(shown, raw=True)
                due = now + SECONDS_BETWEEN
    finally:
        if place is not None:
            place.update({"text/plain": "", "text/html": ""}, raw=True)


def _shown_after() -> float:
    text = os.environ.get(VARIABLE)
    try:
        return SHOWN_AFTER_SECONDS if text is None else float(text)
    except ValueError:
        raise InvalidArgument(f"{VARIABLE} is no number of seconds: {text!r:.80}") from None


def _shown(what: str, rows: int, total: int | None, seconds: float) -> dict[str, str]:
    """Return the progress as text and as HTML."""
    of = "" if total is None else f" of {total:,}"
    text = f"{what}: {rows:,}{of} rows, {rows / max(seconds, 1e-3):,.0f} rows/s"
    bar = "" if total is None else f'<progress value="{rows}" max="{total}"></progress> '
    return {"text/plain": text, "text/html": f"{bar}{escape(text)}"}
