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
