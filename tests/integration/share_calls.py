"""Share groups by plain `pyarrow.flight`, in the words of the wire contracts."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from flight_calls import Json, act, chunks, ticket_of


@dataclass(frozen=True, slots=True)
class Leased:
    """A chunk of an acquire."""

    batch: pa.RecordBatch
    about: Json
    """Its app_metadata."""

    @property
    def offsets(self) -> list[int]:
        """Of its rows."""
        return self.column("__offset")

    @property
    def lease(self) -> str:
        """Its lease."""
        return self.about["lease"]

    def column(self, name: str) -> list[Any]:
        """Return a column's values."""
        return self.batch.column(name).to_pylist()

    def ack(
        self, kind: str, first: int | None = None, last: int | None = None, **keys: Any
    ) -> Json:
        """Return an entry of `share-acknowledge` for it, or for a part of it."""
        return {
            "partition": self.about["partition"],
            "first": self.about["start_offset"] if first is None else first,
            "last": self.about["end_offset"] if last is None else last,
            "lease": self.lease,
            "type": kind,
            **keys,
        }


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group."""

    client: flight.FlightClient
    topic: str
    group: str = "billing"
    name: str = "one"

    def acquire(self, **keys: Any) -> list[Leased]:
        """Acquire, and check the form of the answer."""
        return self.acquire_to_end(**keys)[0]

    def acquire_to_end(self, **keys: Any) -> tuple[list[Leased], Json]:
        """Acquire; return the chunks and the end chunk's words."""
        ticket = {"group": self.group, "topic": self.topic, "member": self.name, **keys}
        reader = self.client.do_get(ticket_of(kind="acquire", **ticket))
        found: list[Leased] = []
        end: Json | None = None
        for chunk in chunks(reader):
            assert end is None, "nothing may follow the end chunk"
            assert chunk.data is not None
            assert chunk.app_metadata is not None
            about = json.loads(chunk.app_metadata.to_pybytes())
            if "end" in about:
                assert chunk.data.num_rows == 0
                assert set(about) == {"end", "next_offset", "log_end_offset"}
                end = about
                continue
            assert chunk.data.num_rows > 0, "no empty chunk is sent"
            assert set(about) == {
                "partition",
                "start_offset",
                "end_offset",
                "lease",
                "delivery_count",
                "lock_duration_ms",
            }
            found.append(Leased(chunk.data, about))
        assert end is not None, "a stream ends with an end chunk"
        return found, end

    def acknowledge(self, *acks: Json) -> list[str | None]:
        """Acknowledge; return the code of each entry."""
        results = self.results(*acks)
        return [result["code"] for result in results]

    def results(self, *acks: Json) -> list[Json]:
        """Acknowledge, and check the form of the answer."""
        answer = act(
            self.client,
            "share-acknowledge",
            group=self.group,
            topic=self.topic,
            member=self.name,
            acks=list(acks),
        )
        assert set(answer) == {"results"}
        for ack, result in zip(acks, answer["results"], strict=True):
            assert {key: result[key] for key in ("partition", "first", "last")} == {
                key: ack.get(key) for key in ("partition", "first", "last")
            }
            assert ("message" in result) == (result["code"] is not None)
        return answer["results"]

    def describe(self) -> Json:
        """Describe the group."""
        return act(self.client, "share-describe", group=self.group, topic=self.topic)


def create_group(
    client: flight.FlightClient, topic: str, group: str = "billing", **config: Any
) -> Json:
    """Create a group that begins with the first message."""
    config = {"start": "earliest", **config}
    return act(client, "share-create", group=group, topic=topic, config=config)


def offsets_of(leased: list[Leased]) -> list[int]:
    """Return the offsets of all rows, in the order that they came."""
    return [offset for each in leased for offset in each.offsets]


class ShareStreamCall:
    """A share stream by plain `pyarrow.flight`; one thread uses it."""

    def __init__(
        self,
        client: flight.FlightClient,
        topic: str,
        *,
        group: str = "billing",
        member: str = "one",
        credit: int = 100,
        begin: bool = True,
        command: bytes | None = None,
        **keys: Any,
    ) -> None:
        if command is None:
            about = {"kind": "share", "group": group, "topic": topic, "member": member}
            command = json.dumps({**about, "credit": credit, **keys}).encode()
        descriptor = flight.FlightDescriptor.for_command(command)
        options = flight.FlightCallOptions(timeout=60)
        self.writer, self._reader = client.do_exchange(descriptor, options)
        self._requests = 0
        self.answers: list[Json] = []
        self.end: Json | None = None
        if begin:
            self.send({"credit": credit})

    @property
    def schema(self) -> pa.Schema:
        """The schema that the server has begun with."""
        return self._reader.schema

    def send(self, message: Json) -> None:
        """Send a message."""
        self.send_raw(json.dumps(message).encode())

    def send_raw(self, message: bytes) -> None:
        """Send anything as app_metadata."""
        self.writer.write_metadata(pa.py_buffer(message))

    def acknowledge(self, *acks: Json) -> int:
        """Send acknowledgements; return the request's number."""
        self._requests += 1
        self.send({"request": self._requests, "acks": list(acks)})
        return self._requests

    def delivery(self) -> Leased:
        """Return the next delivery; answers that come before it are kept."""
        while True:
            found = self.read()
            assert found is not None, f"the stream ended: {self.end}"
            if isinstance(found, Leased):
                return found

    def answer(self, request: int) -> list[str | None]:
        """Return the codes of an answer, which must be the next that comes."""
        while not self.answers:
            found = self.read()
            assert not isinstance(found, Leased), f"a delivery came first: {found.about}"
            assert found is not None, f"the stream ended: {self.end}"
        answer = self.answers.pop(0)
        assert answer["request"] == request
        return [result["code"] for result in answer["results"]]

    def read(self) -> Leased | Json | None:
        """Return the next message; None at the stream's end."""
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            return None
        assert chunk.data is not None
        assert chunk.app_metadata is not None
        about = json.loads(chunk.app_metadata.to_pybytes())
        assert self.end is None, "nothing may follow the end"
        if "end" in about:
            assert set(about) == {"end", "message"}
            assert chunk.data.num_rows == 0
            self.end = about
            return about
        if "request" in about:
            assert set(about) == {"request", "results"}
            assert chunk.data.num_rows == 0
            self.answers.append(about)
            return about
        return Leased(chunk.data, about)

    def ended(self) -> Json:
        """Read up to the end that the server sends, and end this side."""
        while self.end is None:
            assert self.read() is not None, "the stream ended without a word"
        end = self.end
        self.close()
        return end

    def close(self) -> list[Leased]:
        """End this side; return the deliveries that come yet."""
        self.writer.done_writing()
        found: list[Leased] = []
        while (message := self.read()) is not None:
            if isinstance(message, Leased):
                found.append(message)
        self.writer.close()
        return found

    def cancel(self) -> None:
        """Break the stream, as a process that dies does."""
        self._reader.cancel()
