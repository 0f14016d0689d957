"""kill -9 between stage and publish and in the midst of one: published once, and as a whole."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import Json, act, create_topic, get, numbers, put_stream
from forked_servers import ForkedServers

STAGES = ("a", "b")
"""One for each topic, both published at once."""

ROWS = 40
"""Of each stage, one row a batch, so that a publish is not over in no time."""


@pytest.fixture(scope="module")
def servers() -> Iterator[ForkedServers]:
    with ForkedServers() as forking:
        yield forking


def stage(client: flight.FlightClient, topic: str, stage_id: str, first: int) -> None:
    with put_stream(client, numbers().schema, topic, stage=stage_id) as stream:
        for value in range(first, first + ROWS):
            stream.send(numbers(value))
        for _ in range(ROWS):
            answer = stream.answer()
            assert answer is not None
            assert "staged" in answer


def publish(client: flight.FlightClient, batch: int, stages: list[str]) -> Json:
    return act(client, "stage-publish", writer="w", batch=batch, stages=stages)


def values(client: flight.FlightClient, topic: str) -> list[int]:
    return get(client, kind="scan", topic=topic).column("n")


def test_what_was_staged_and_what_was_published_survives_a_crash(
    servers: ForkedServers, tmp_path: Path
) -> None:
    with servers.start(tmp_path) as server:
        server.wait_until_ready()
        with flight.FlightClient(server.flight) as client:
            create_topic(client, "a", ["n: int64"])
            stage(client, "a", "s", 0)
            stage(client, "a", "t", 100)
        server.kill()
    with servers.start(tmp_path) as server:
        server.wait_until_ready()
        with flight.FlightClient(server.flight) as client:
            assert values(client, "a") == []
            first = publish(client, 0, ["s"])
            assert not first["replayed"]
        server.kill()
    with servers.start(tmp_path) as server:
        server.wait_until_ready()
        with flight.FlightClient(server.flight) as client:
            assert publish(client, 0, ["s"]) == {**first, "replayed": True}
            assert values(client, "a") == list(range(ROWS))
            answer = act(client, "stage-abort", writer="w", batch=0, stages=["s", "t"])
            assert answer == {"deleted": ["t"], "published": True}


def test_a_stream_that_a_crash_cut_off_leaves_a_stage_that_can_be_aborted(
    servers: ForkedServers, tmp_path: Path
) -> None:
    with servers.start(tmp_path) as server:
        server.wait_until_ready()
        with flight.FlightClient(server.flight) as client:
            create_topic(client, "a", ["n: int64"])

            def staging() -> None:
                with put_stream(client, numbers().schema, "a", stage="s") as stream:
                    stream.push(numbers(1))
                    server.kill()
                    stream.push(numbers(2))

            with pytest.raises((flight.FlightError, pa.ArrowException, OSError)):
                staging()
    with servers.start(tmp_path) as server:
        server.wait_until_ready()
        with flight.FlightClient(server.flight) as client:
            answer = act(client, "stage-abort", writer="w", batch=0, stages=["s"])
            assert answer == {"deleted": ["s"], "published": False}
            assert values(client, "a") == []


@pytest.mark.parametrize(
    "rounds", [5, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
def test_a_publish_that_a_crash_interrupts_is_done_once_and_as_a_whole(
    servers: ForkedServers, tmp_path: Path, rounds: int
) -> None:
    chance = random.Random(11)
    committed: list[list[Json]] = []
    replays = 0
    for batch in range(rounds + 1):
        with servers.start(tmp_path) as server:
            server.wait_until_ready()
            with flight.FlightClient(server.flight) as client:
                if batch == 0:
                    for topic in STAGES:
                        create_topic(client, topic, ["n: int64"])
                else:
                    # What the crash interrupted, retried, as by a writer without a response.
                    answer = publish(client, batch - 1, [f"{t}-{batch - 1}" for t in STAGES])
                    replays += answer["replayed"]
                    committed.append(answer["committed"])
                    check(client, committed)
                for topic in STAGES:
                    stage(client, topic, f"{topic}-{batch}", batch * ROWS)
                stages = [f"{topic}-{batch}" for topic in STAGES]
                publishing = threading.Thread(
                    target=publish_until_killed, args=(client, batch, stages)
                )
                if batch == 0:
                    server.kill()
                publishing.start()
                if batch == 1:
                    publishing.join(60)
                # Any moment will do: no synchronisation, but what is tried.
                threading.Event().wait(chance.uniform(0, 0.01))
                server.kill()
                publishing.join(60)
                assert not publishing.is_alive()
    # The first crash came before its publish, the second after.
    assert 0 < replays < rounds


def publish_until_killed(client: flight.FlightClient, batch: int, stages: list[str]) -> None:
    try:
        publish(client, batch, stages)
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        if getattr(error, "extra_info", b""):
            raise  # The server was not killed: it refused, and has no reason to.


def check(client: flight.FlightClient, committed: list[list[Json]]) -> None:
    """Make sure that each batch is there once, whole, where its publish said."""
    for index, topic in enumerate(STAGES):
        assert values(client, topic) == list(range(len(committed) * ROWS))
        for batch, ranges in enumerate(committed):
            assert ranges[index]["topic"].endswith(f"/{topic}")
            assert ranges[index]["start_offset"] == batch * ROWS
            assert ranges[index]["end_offset"] == (batch + 1) * ROWS - 1
