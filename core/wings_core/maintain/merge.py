"""Rows of many pages as one batch, each with its timestamp."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from wings_core.fetch.timestamps import timestamp_column


def joined(
    parts: "Sequence[tuple[pa.RecordBatch, int | pa.Array[Any]]]", schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows, each part with its timestamps, as one batch.

    Args:
        parts: Batches of a topic's columns, and their timestamps: one for all rows, or one for
            each, in microseconds since the epoch.
        schema: The topic's columns, and the timestamps as the last.
    """
    batches = [rows for rows, _ in parts]
    merged = pa.concat_batches(batches) if len(batches) > 1 else batches[0]  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
    times = timestamp_column([(times, rows.num_rows) for rows, times in parts])
    return pa.RecordBatch.from_arrays([*merged.columns, times], schema=schema)
