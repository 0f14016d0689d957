"""Reading columns of Parquet in batches of bounded size, with INT96 in a lossless unit.

INT96 holds times with nanoseconds over more years than 64 bits of nanoseconds. Arrow reads them as
nanoseconds, which overflows, or as microseconds, which truncates, both silently. Most writers, like
Spark, use microseconds, and `9999-12-31` for no end; others use nanoseconds. So columns of INT96
are first read in both units, and then in the one that preserves all of their times.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from wings_client.files.parts import bad_row
from wings_core.arrow_types import leaves

pc: Any = pyarrow.compute

BATCH_ROWS = 65_536
"""Most rows read at a time."""

BATCH_BYTES = 32 * 1024 * 1024
"""Approximate bytes read at a time: Arrow cannot read nested columns above 2 GiB."""

_NS_PER_US = 1_000


class ParquetColumns:
    """The columns of some row groups of a Parquet file.

    Args:
        path: Path of the file.

    Attributes:
        metadata: Metadata of the file.
        schema: The file's columns as they are read; INT96 columns only after `measure`.
    """

    def __init__(self, path: Path) -> None:
        self._fine = self._coarse = _opened(path, "ns")
        about = self._fine.schema
        if any(about.column(index).physical_type == "INT96" for index in range(len(about))):
            self._coarse = _opened(path, "us")
        self._is_coarse: set[str] = set()
        self.metadata: Any = self._fine.metadata
        self.schema: pa.Schema = self._fine.schema_arrow

    def measure(
        self, groups: Sequence[int], names: Sequence[str], place: Callable[[int], str]
    ) -> None:
        """Find the unit of each column of INT96; reads these columns.

        Args:
            groups: The row groups to examine.
            names: The columns to examine.
            place: Returns the position text of a row by its index within the row groups.

        Raises:
            SchemaMismatch: No unit holds all times of a column.
        """
        for index, name in enumerate(self.schema.names):
            field: Any = self._coarse.schema_arrow.field(index)
            if name not in names or field.type == self.schema.field(index).type:
                continue
            if self._is_of_microseconds(name, groups, place):
                self._is_coarse.add(name)
                self.schema = self.schema.set(index, field)

    def batches(self, groups: Sequence[int], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups, of some columns."""
        if self._is_coarse.isdisjoint(names):
            yield from _batches(self._fine, groups, names)
            return
        fine = [name for name in names if name not in self._is_coarse]
        coarse = [name for name in names if name in self._is_coarse]
        schema = pa.schema([self.schema.field(name) for name in names])
        readers = [
            _batches(file, groups, wanted)
            for file, wanted in ((self._fine, fine), (self._coarse, coarse))
            if wanted
        ]
        for parts in zip(*readers, strict=True):
            columns = {name: part.column(name) for part in parts for name in part.schema.names}
            yield pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)

    def _is_of_microseconds(
        self, name: str, groups: Sequence[int], place: Callable[[int], str]
    ) -> bool:
        has_digits = has_other_years = False
        rows = 0
        pairs = zip(
            _batches(self._fine, groups, [name]),
            _batches(self._coarse, groups, [name]),
            strict=True,
        )
        for fine_batch, coarse_batch in pairs:
            for fine, coarse in zip(
                leaves(fine_batch.column(0)), leaves(coarse_batch.column(0)), strict=True
            ):
                if fine.type == coarse.type:
                    continue
                ns, us = fine.cast(pa.int64()), coarse.cast(pa.int64())
                # The part below a microsecond, correct even on overflow of 64 bits.
                digits = pc.subtract(ns, pc.multiply(us, _NS_PER_US))
                has_digits |= bool(pc.any(pc.not_equal(digits, 0)).as_py())
                whole = pc.divide(pc.subtract(ns, digits), _NS_PER_US)
                has_other_years |= bool(pc.any(pc.not_equal(whole, us)).as_py())
            rows += fine_batch.num_rows
            if has_digits and has_other_years:
                raise bad_row(
                    place(rows - 1),
                    f"column {name!r:.80}: up to here it has times with nanoseconds, and times "
                    "beyond the range of 64 bits of nanoseconds",
                    name,
                )
        return not has_digits


def _opened(path: Path, unit: str) -> Any:
    return pyarrow.parquet.ParquetFile(path, memory_map=True, coerce_int96_timestamp_unit=unit)


def _batches(file: Any, groups: Sequence[int], names: Sequence[str]) -> Iterator[Any]:
    about = [file.metadata.row_group(group) for group in groups]
    row_bytes = max((each.total_byte_size // max(1, each.num_rows) for each in about), default=0)
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes)))
    for batch in file.iter_batches(rows, list(groups), list(names)):
        yield batch.select(names)  # A name with dots may also match a part of another column.
