"""The reader of ORC, with stripes cast to the topic's types."""

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc

from wings_client.files.arrow_batches import cast_parts, columns_of, gathered
from wings_client.files.parts import ALL, ChosenColumns, Part
from wings_client.files.source import Source
from wings_core.errors import InvalidArgument
from wings_core.plain_types import plain_schema

orc: Any = pyarrow.orc


class OrcRows:
    """An ORC file.

    Args:
        source: Its `position` is kept up to date.
        path: Path of the file; None for standard input, which is rejected.
        chosen: The columns to read.

    Attributes:
        found: Number of rows of the file.

    Raises:
        InvalidArgument: The file is not ORC.
    """

    def __init__(self, source: Source, path: Path | None, chosen: ChosenColumns = ALL) -> None:
        self._source = source
        if path is None or not source.is_plain:
            raise InvalidArgument(
                "ORC is read from its end, so it must be a file, and one that is not compressed",
                argument="path",
            )
        try:
            self._file: Any = orc.ORCFile(str(path))
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(f"not ORC: {error!s:.300}") from None
        self.found: int = self._file.nrows
        self._schema = columns_of(self._file.schema, chosen)
        self.names: list[str] = self._schema.names

    def rows_before(self) -> int:
        """Return 0, as ORC has no sections."""
        return 0

    def schema(self) -> pa.Schema:
        """Return the file's columns, without types that only encode others."""
        return plain_schema(self._schema)

    def parts(self, schema: pa.Schema, exact: Set[str] = frozenset()) -> Iterator[Part]:
        """Yield its rows; see `Rows.parts`. Each stripe is read into memory as a whole."""
        del exact
        rows = 0
        stripes = gathered(self._stripes())
        for part in cast_parts(stripes, self._schema, schema, self._source.row):
            rows += part.batch.num_rows
            self._source.position = (self._source.size or 0) * rows // max(1, self.found)
            yield part

    def _stripes(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        for index in range(self._file.nstripes):
            try:
                batch: pa.RecordBatch = self._file.read_stripe(index).select(self.names)
            except (pa.ArrowException, OSError) as error:
                raise InvalidArgument(f"after row {rows}: unreadable ORC: {error!s:.200}") from None
            rows += batch.num_rows
            yield batch
