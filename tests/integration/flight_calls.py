"""Plain `pyarrow.flight` calls in the words of the wire contracts, for tests."""

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

Json = dict[str, Any]


def act(client: flight.FlightClient, action: str, **body: Any) -> Any:
    """Call an action and return its one result."""
    results = list(client.do_action(flight.Action(action, json.dumps(body).encode())))
    assert len(results) == 1
    return json.loads(results[0].body.to_pybytes())


def create_topic(
    client: flight.FlightClient, topic: str, fields: Sequence[str], partition_key: str | None = None
) -> Json:
    """Create a topic from fields like `"n: int64"` or `"n: int64 not null"`."""
    parsed: list[Json] = []
    for field in fields:
        name, kind = field.split(": ", 1)
        nullable = not kind.endswith(" not null")
        parsed.append({"name": name, "type": kind.removesuffix(" not null"), "nullable": nullable})
    body: Json = {"topic": topic, "schema": {"fields": parsed}}
    if partition_key is not None:
        body["partition_key"] = partition_key
    return act(client, "create-topic", **body)


@dataclass(frozen=True, slots=True)
class Answer:
    """A stream read to its end: rows, the ranges of its chunks, and the end chunk's words."""

    table: pa.Table
    ranges: list[tuple[int, int]]
    chunk_rows: list[int]
    end: str
    next_offset: int
    log_end_offset: int

    def column(self, name: str) -> list[Any]:
        """Return a column's values."""
        return self.table[name].to_pylist()


def ticket_of(**keys: Any) -> flight.Ticket:
    """Return a JSON ticket."""
    return flight.Ticket(json.dumps(keys).encode())


def get(client: flight.FlightClient, **keys: Any) -> Answer:
    """Read a ticket to its end."""
    return read_answer(client.do_get(ticket_of(**keys)))


def read_answer(reader: flight.FlightStreamReader) -> Answer:
    """Read a stream to its end, and check its form: chunks of rows, then one empty end chunk."""
    batches: list[pa.RecordBatch] = []
    ranges: list[tuple[int, int]] = []
    end: Json | None = None
    for chunk in chunks(reader):
        assert end is None, "nothing may follow the end chunk"
        assert chunk.data is not None
        assert chunk.app_metadata is not None
        metadata = json.loads(chunk.app_metadata.to_pybytes())
        if "end" in metadata:
            assert chunk.data.num_rows == 0
            end = metadata
            continue
        assert chunk.data.num_rows > 0, "no empty chunk is sent"
        assert set(metadata) == {"start_offset", "end_offset"}
        batches.append(chunk.data)
        ranges.append((metadata["start_offset"], metadata["end_offset"]))
    assert end is not None, "a stream ends with an end chunk"
    return Answer(
        pa.Table.from_batches(batches, reader.schema),
        ranges,
        [batch.num_rows for batch in batches],
        end["end"],
        end["next_offset"],
        end["log_end_offset"],
    )


def chunks(reader: flight.FlightStreamReader) -> Iterator[flight.FlightStreamChunk]:
    """Yield a stream's chunks."""
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return


def open_put(
    client: flight.FlightClient,
    descriptor: flight.FlightDescriptor,
    schema: pa.Schema,
    options: flight.FlightCallOptions | None = None,
) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
    """Open a stream of batches and one of their answers."""
    return client.do_put(descriptor, schema, options)  # pyright: ignore[reportReturnType] - the stubs are wrong


class Stream:
    """An open DoPut stream."""

    def __init__(
        self,
        client: flight.FlightClient,
        schema: pa.Schema,
        topic: str,
        **command: Any,
    ) -> None:
        if command:
            body = json.dumps({"topic": topic, **command}).encode()
            descriptor = flight.FlightDescriptor.for_command(body)
        else:
            descriptor = flight.FlightDescriptor.for_path(topic)
        self.writer, self._answers = open_put(client, descriptor, schema)

    def send(self, batch: pa.RecordBatch, **metadata: Any) -> None:
        """Write a batch, with JSON app_metadata where there is any."""
        if metadata:
            self.writer.write_with_metadata(batch, pa.py_buffer(json.dumps(metadata).encode()))
        else:
            self.writer.write_batch(batch)

    def answer(self) -> Json | None:
        """Read the next PutResult; None where the stream has ended."""
        buffer = self._answers.read()
        return None if buffer is None else json.loads(buffer.to_pybytes())

    def push(self, batch: pa.RecordBatch, **metadata: Any) -> Json:
        """Write a batch and read its answer."""
        self.send(batch, **metadata)
        answer = self.answer()
        if answer is None:
            self.close()  # Raises what the stream ended with.
        assert answer is not None
        return answer

    def close(self) -> None:
        """Finish; raises what the stream ended with."""
        self.writer.close()


@contextmanager
def put_stream(
    client: flight.FlightClient, schema: pa.Schema, topic: str, **command: Any
) -> Generator[Stream]:
    """Open a stream and finish it at the end, where nothing else went wrong."""
    stream = Stream(client, schema, topic, **command)
    yield stream
    stream.close()


def push(
    client: flight.FlightClient, topic: str, *batches: pa.RecordBatch, **command: Any
) -> list[Json]:
    """Push batches on one stream, one after another; return what each committed."""
    with put_stream(client, batches[0].schema, topic, **command) as stream:
        return [stream.push(batch) for batch in batches]


def numbers(*values: int) -> pa.RecordBatch:
    """Return a batch of one int64 column `n`."""
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def error_of(error: BaseException) -> Json:
    """Return the JSON that an error of the server carries."""
    extra = getattr(error, "extra_info", b"")
    assert extra, f"no extra_info in {error!r}"
    return json.loads(bytes(extra))


def code_of(error: BaseException) -> str:
    """Return the stable code of an error of the server."""
    return error_of(error)["code"]
