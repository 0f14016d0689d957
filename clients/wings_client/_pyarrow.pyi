# The classes that those of `arrow.pyi` extend: pyarrow's, where a checker knows them.
#
# Without the stubs, mypy lets a class of an unknown base pass for any other, as in
# `count: int = result.table`, so its base is a class of unknown members there. Of definitions of
# one name mypy takes the first, and a star of an unknown module defines none; pyright takes the
# last.
#
# mypy: ignore-errors
# pyright: basic, reportRedeclaration=false
# ruff: noqa: F403, F811

from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import *

class _Unknown:
    def __getattr__(self, name: str) -> Any: ...

class Array(_Unknown): ...
class ChunkedArray(_Unknown): ...
class DataType(_Unknown): ...
class Field(_Unknown): ...
class RecordBatch(_Unknown): ...
class RecordBatchReader(_Unknown): ...
class Schema(_Unknown): ...
class Table(_Unknown): ...

Array: TypeAlias = pa.Array[Any]
ChunkedArray: TypeAlias = pa.ChunkedArray[Any]
DataType: TypeAlias = pa.DataType
Field: TypeAlias = pa.Field[Any]
RecordBatch: TypeAlias = pa.RecordBatch
RecordBatchReader: TypeAlias = pa.RecordBatchReader
Schema: TypeAlias = pa.Schema
Table: TypeAlias = pa.Table
