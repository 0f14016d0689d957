"""DoGet of many partitions, in the words of the wire contract, for tests."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from flight_calls import Json, chunks, ticket_of


@dataclass(frozen=True, slots=True)
class ManyAnswer:
    """A stream of many partitions read to its end."""

    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]
    ranges: Sequence[Sequence[Json]]
    """Of each chunk."""
    rows: dict[Any, list[Json]]
    """Of each partition, in the order in which they came, as dictionaries."""
    end: str
    next_offsets: dict[Any, int]
    log_end_offsets: dict[Any, int]

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def column(self, name: str) -> dict[Any, list[Any]]:
        """Return a column's values by partition."""
        return {key: [row[name] for row in rows] for key, rows in self.rows.items()}


def get_many(client: flight.FlightClient, **keys: Any) -> ManyAnswer:
    """Read a ticket to its end."""
    return read_many(client.do_get(ticket_of(**keys)))


def read_many(reader: flight.FlightStreamReader) -> ManyAnswer:
    """Read a stream to its end, and check its form."""
    batches: list[pa.RecordBatch] = []
    ranges: list[list[Json]] = []
    rows: dict[Any, list[Json]] = {}
    reached: dict[Any, int] = {}
    end: Json | None = None
    for chunk in chunks(reader):
        assert end is None, "nothing may follow the end chunk"
        assert chunk.data is not None
        assert chunk.app_metadata is not None
        metadata = json.loads(chunk.app_metadata.to_pybytes())
        if "end" in metadata:
            assert chunk.data.num_rows == 0
            assert set(metadata) == {"end", "partitions"}
            end = metadata
            continue
        assert set(metadata) == {"ranges"}
        assert chunk.data.num_rows > 0, "no empty chunk is sent"
        assert sum(each["rows"] for each in metadata["ranges"]) == chunk.data.num_rows
        first = 0
        for each in metadata["ranges"]:
            assert set(each) - {"slot"} == {"partition", "start_offset", "end_offset", "rows"}
            key, start, last, count = (
                each["partition"], each["start_offset"], each["end_offset"], each["rows"]
            )  # fmt: skip
            assert start >= reached.get(key, 0), "offsets ascend within a partition"
            assert count <= last - start + 1
            reached[key] = last + 1
            part = chunk.data.slice(first, count)
            if "__partition" in part.schema.names:
                assert set(part["__partition"].to_pylist()) <= {json.dumps(key, ensure_ascii=False)}
                offsets: list[Any] = part["__offset"].to_pylist()
                assert offsets == sorted(set(offsets))
                assert all(start <= offset <= last for offset in offsets)
            rows.setdefault(key, []).extend(part.to_pylist())
            first += count
        batches.append(chunk.data)
        ranges.append(metadata["ranges"])
    assert end is not None, "a stream ends with an end chunk"
    next_offsets = {each["partition"]: each["next_offset"] for each in end["partitions"]}
    assert len(next_offsets) == len(end["partitions"])
    for key, offset in reached.items():
        assert next_offsets[key] >= offset
    return ManyAnswer(
        reader.schema,
        batches,
        ranges,
        rows,
        end["end"],
        next_offsets,
        {each["partition"]: each["log_end_offset"] for each in end["partitions"]},
    )
