"""The classes of pyarrow's objects that the client returns: pyarrow's own, with types.

pyarrow has no types: a checker knows its classes by the package `pyarrow-stubs` alone, and without
it takes everything that comes from a call for unknown. `arrow.pyi` declares these names as
subclasses with the members that most programs use, so that a strict program passes without stubs.
Where the stubs are installed they are pyarrow's classes still, with all the rest.
"""

from pyarrow import (
    Array,
    ChunkedArray,
    DataType,
    Field,
    RecordBatch,
    RecordBatchReader,
    Schema,
    Table,
)

__all__ = [
    "Array",
    "ChunkedArray",
    "DataType",
    "Field",
    "RecordBatch",
    "RecordBatchReader",
    "Schema",
    "Table",
]
