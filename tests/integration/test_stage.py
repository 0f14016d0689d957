"""The stage contract by plain Arrow Flight: durable and invisible, then published at once."""

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import (
    Json,
    Stream,
    act,
    code_of,
    create_topic,
    error_of,
    get,
    numbers,
    push,
    put_stream,
    read_answer,
)
from tables import each
from waiting import until

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

KEYED = ["key: string", "n: int64"]


def full(topic: str) -> str:
    return f"tenants/default/namespaces/default/topics/{topic}"


def keyed(*rows: tuple[str, int]) -> pa.RecordBatch:
    keys, values = zip(*rows, strict=True)
    return pa.record_batch({"key": pa.array(keys), "n": pa.array(values, pa.int64())})


def stage(
    client: flight.FlightClient, topic: str, stage_id: str, *batches: pa.RecordBatch, **command: Any
) -> list[Json]:
    """Stage batches on one stream; return the answers."""
    with put_stream(client, batches[0].schema, topic, stage=stage_id, **command) as stream:
        return [stream.push(batch) for batch in batches]


def publish(
    client: flight.FlightClient, writer: str, batch: int, *stages: str
) -> tuple[list[Json], bool]:
    answer = act(client, "stage-publish", writer=writer, batch=batch, stages=list(stages))
    assert set(answer) == {"committed", "replayed"}
    return answer["committed"], answer["replayed"]


def refused(client: flight.FlightClient, action: str, **body: Any) -> Json:
    with pytest.raises(flight.FlightServerError) as caught:
        act(client, action, **body)
    return error_of(caught.value)


def refused_put(
    client: flight.FlightClient, batch: pa.RecordBatch, topic: str, **command: Any
) -> Json:
    """Return what a stream's first batch, or the stream itself, is refused with."""

    def attempt() -> None:
        stream = Stream(client, batch.schema, topic, **command)
        stream.push(batch)
        stream.close()

    with pytest.raises(flight.FlightServerError) as caught:
        attempt()
    return error_of(caught.value)


def values(client: flight.FlightClient, topic: str, **keys: Any) -> list[int]:
    return get(client, kind="scan", topic=topic, **keys).column("n")


def test_staged_batches_are_answered_in_order_and_invisible(
    client: flight.FlightClient, topic: str
) -> None:
    answers = stage(client, topic, f"{topic}.1", numbers(1, 2, 3), numbers(), numbers(4))
    assert [answer["batch"] for answer in answers] == [0, 1, 2]
    for answer, rows in zip(answers, (3, 0, 1), strict=True):
        assert set(answer) == {"batch", "staged"}
        assert set(answer["staged"]) == {"stage", "rows", "bytes"}
        assert (answer["staged"]["stage"], answer["staged"]["rows"]) == (f"{topic}.1", rows)
        assert (answer["staged"]["bytes"] > 0) == (rows > 0)
    assert values(client, topic) == []
    (state,) = act(client, "partition-states", topic=topic)
    assert (state["next_offset"], state["bytes"]) == (0, 0)


def test_batches_are_pipelined(client: flight.FlightClient, topic: str) -> None:
    stream = Stream(client, numbers().schema, topic, stage=topic)
    for value in range(300):
        stream.send(numbers(value))
    stream.writer.done_writing()
    for index in range(300):
        answer = stream.answer()
        assert answer is not None
        assert answer["batch"] == index
        assert answer["staged"]["rows"] == 1
    stream.close()
    assert publish(client, topic, 0, topic)[0][0]["end_offset"] == 299
    assert values(client, topic) == list(range(300))


def test_a_publish_makes_all_stages_visible_at_once_over_topics_and_partitions(
    client: flight.FlightClient, topic: str
) -> None:
    create_topic(client, f"{topic}-k", KEYED, "key")
    push(client, f"{topic}-k", keyed(("a", 0)))
    stage(client, f"{topic}-k", f"{topic}.1", keyed(("b", 1), ("a", 2)), keyed(("a", 3)))
    stage(client, topic, f"{topic}.2", numbers(7, 8))
    stage(client, f"{topic}-k", f"{topic}.3", keyed(("a", 4)), partition="a")
    committed, replayed = publish(client, topic, 0, f"{topic}.1", f"{topic}.2", f"{topic}.3")
    assert not replayed
    assert committed == [
        {"topic": full(f"{topic}-k"), "partition": "b", "start_offset": 0, "end_offset": 0},
        {"topic": full(f"{topic}-k"), "partition": "a", "start_offset": 1, "end_offset": 3},
        {"topic": full(topic), "partition": None, "start_offset": 0, "end_offset": 1},
    ]
    assert values(client, f"{topic}-k", partition="a") == [0, 2, 3, 4]
    assert values(client, f"{topic}-k", partition="b") == [1]
    assert values(client, topic) == [7, 8]


def test_a_stage_that_is_not_there_publishes_nothing(
    client: flight.FlightClient, topic: str
) -> None:
    stage(client, topic, topic, numbers(1))
    error = refused(client, "stage-publish", writer=topic, batch=0, stages=[topic, "nowhere"])
    assert (error["code"], error["stage"]) == ("STAGE_NOT_FOUND", "nowhere")
    assert "'nowhere'" in error["message"]
    assert values(client, topic) == []
    assert publish(client, topic, 0, topic)[1] is False


def test_a_publish_wakes_long_polls(client: flight.FlightClient, topic: str) -> None:
    stage(client, topic, topic, numbers(1, 2))
    reader = client.do_get(
        flight.Ticket(f'{{"topic": "{topic}", "offset": 0, "timeout_ms": 60000}}'.encode())
    )
    publish(client, topic, 0, topic)
    assert read_answer(reader).column("n") == [1, 2]


def test_offsets_and_times_come_with_the_publish(client: flight.FlightClient, topic: str) -> None:
    early, late = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    stage(client, topic, topic, numbers(1), timestamp=early)
    with put_stream(client, numbers().schema, topic, stage=f"{topic}.2") as stream:
        stream.push(numbers(2), timestamp=early)
        stream.push(numbers(3), timestamp=late)
    push(client, topic, numbers(0), timestamp="2026-01-01T12:00:00Z")
    publish(client, topic, 0, topic, f"{topic}.2")
    read = get(client, kind="scan", topic=topic, system_columns=True)
    assert read.column("n") == [0, 1, 2, 3]
    assert read.column("__offset") == [0, 1, 2, 3]
    stamps = [stamp.isoformat() for stamp in read.column("__timestamp")]
    noon = "2026-01-01T12:00:00+00:00"
    assert stamps == [noon, noon, noon, "2026-01-02T00:00:00+00:00"]


def test_an_abort_deletes_what_was_not_published(client: flight.FlightClient, topic: str) -> None:
    for number in range(3):
        stage(client, topic, f"{topic}.{number}", numbers(number))
    publish(client, topic, 0, f"{topic}.0")
    stages = [f"{topic}.{number}" for number in range(3)] + ["nowhere"]
    answer = act(client, "stage-abort", writer=topic, batch=0, stages=stages)
    assert answer == {"deleted": [f"{topic}.1", f"{topic}.2"], "published": True}
    assert values(client, topic) == [0]
    answer = act(client, "stage-abort", writer=topic, stages=stages)
    assert answer == {"deleted": [], "published": None}
    assert act(client, "stage-abort", writer=topic, batch=1, stages=[])["published"] is False
    error = refused(client, "stage-publish", writer=topic, batch=1, stages=[f"{topic}.1"])
    assert error["code"] == "STAGE_NOT_FOUND"


def test_a_second_stream_cannot_write_a_stage(client: flight.FlightClient, topic: str) -> None:
    stage(client, topic, topic, numbers(1))
    error = refused_put(client, numbers(2), topic, stage=topic)
    assert (error["code"], error["stage"]) == ("ALREADY_EXISTS", topic)
    publish(client, topic, 0, topic)
    assert values(client, topic) == [1]


def test_an_abort_deletes_what_begins_alike(client: flight.FlightClient, topic: str) -> None:
    stages = [f"{topic}.{number}" for number in range(3)]
    for name in stages:
        stage(client, topic, name, numbers(1))
    publish(client, topic, 0, stages[0])
    answer = act(client, "stage-abort", writer=topic, stages=[], prefix=f"{topic}.")
    assert answer == {"deleted": stages[1:], "published": None}
    error = refused(client, "stage-abort", writer=topic, stages=[], prefix="")
    assert error["code"] == "INVALID_ARGUMENT"


def test_a_stage_that_is_aborted_while_it_is_written_takes_no_more(
    client: flight.FlightClient, topic: str
) -> None:
    stream = Stream(client, numbers().schema, topic, stage=topic)
    stream.push(numbers(1))
    act(client, "stage-abort", writer=topic, stages=[topic])
    assert stream.push(numbers(2))["error"]["code"] == "STAGE_NOT_FOUND"
    with pytest.raises(flight.FlightServerError) as caught:
        stream.close()
    assert code_of(caught.value) == "STAGE_NOT_FOUND"
    error = refused(client, "stage-publish", writer=topic, batch=0, stages=[topic])
    assert error["code"] == "STAGE_NOT_FOUND"


@each(
    ("command", "named"),
    [
        ({"producer_id": "p"}, "producer_id"),
        ({"stage": ""}, "stage"),
    ],
)
def test_a_descriptor_that_makes_no_sense_is_refused(
    client: flight.FlightClient, topic: str, command: Json, named: str
) -> None:
    error = refused_put(client, numbers(1), topic, **{"stage": topic, **command})
    assert error["code"] == "INVALID_ARGUMENT"
    assert f"'{named}'" in error["message"]


@pytest.mark.parametrize("key", ["sequence", "expected_offset"])
def test_a_staged_batch_with_a_condition_is_refused(
    client: flight.FlightClient, topic: str, key: str
) -> None:
    stream = Stream(client, numbers().schema, topic, stage=topic)
    error = stream.push(numbers(1), **{key: 0})["error"]
    assert error["code"] == "INVALID_ARGUMENT"
    assert f"'{key}'" in error["message"]


@each(
    ("changes", "named"),
    [
        ({"writer": ""}, "writer"),
        ({"writer": "x" * 256}, "writer"),
        ({"batch": -1}, "batch"),
        ({"batch": 1 << 63}, "batch"),
        ({"batch": 1.0}, "batch"),
        ({"batch": "1"}, "batch"),
        ({"batch": None}, "batch"),
        ({"stages": None}, "stages"),
        ({"stages": "s"}, "stages"),
        ({"stages": ["a b"]}, "stages"),
        ({"stages": ["s", "s"]}, "stages"),
        ({"stages": ["s"] * 10_001}, "stages"),
        ({"topic": "t"}, "topic"),
    ],
)
@each("action", ["stage-publish", "stage-abort"])
def test_a_body_that_makes_no_sense_is_refused(
    client: flight.FlightClient, action: str, changes: Json, named: str
) -> None:
    body: Json = {"writer": "w", "batch": 0, "stages": [], **changes}
    error = refused(client, action, **body)
    assert error["code"] == "INVALID_ARGUMENT"
    assert f"'{named}" in error["message"]


@each("missing", ["writer", "batch", "stages"])
def test_a_publish_needs_all_of_its_keys(client: flight.FlightClient, missing: str) -> None:
    body: Json = {"writer": "w", "batch": 0, "stages": []}
    del body[missing]
    assert f"'{missing}'" in refused(client, "stage-publish", **body)["message"]


def test_staged_batches_are_checked_like_all_others(
    client: flight.FlightClient, topic: str
) -> None:
    create_topic(client, f"{topic}-k", ["key: string", "n: int64 not null"], "key")
    schema = pa.schema([pa.field("key", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    null = pa.record_batch([pa.array(["a"]), pa.array([None], pa.int64())], schema=schema)
    stages = (f"{topic}.{number}" for number in range(10))
    wrong = pa.record_batch({"n": pa.array(["x"])})
    assert refused_put(client, wrong, topic, stage=next(stages))["code"] == "SCHEMA_MISMATCH"
    error = refused_put(client, null, f"{topic}-k", stage=next(stages))
    assert (error["code"], error["column"]) == ("SCHEMA_MISMATCH", "n")
    good = pa.record_batch([pa.array(["a"]), pa.array([1])], schema=schema)
    error = refused_put(client, good, f"{topic}-k", stage=next(stages), partition="b")
    assert error["code"] == "INVALID_ARGUMENT"
    nowhere = refused_put(client, numbers(1), f"{topic}-nowhere", stage=next(stages))
    assert nowhere["code"] == "TOPIC_NOT_FOUND"
    for number in range(10):
        stage_id = f"{topic}.{number}"
        error = refused(client, "stage-publish", writer=topic, batch=0, stages=[stage_id])
        assert error["code"] == "STAGE_NOT_FOUND"


def test_a_batch_that_is_too_large_is_not_staged(client: flight.FlightClient, topic: str) -> None:
    act(client, "alter-topic", topic=topic, config={"batch_bytes_max": 64})
    with put_stream(client, numbers().schema, topic, stage=topic) as stream:
        stream.push(numbers(1))
    error = refused_put(client, numbers(*range(100)), topic, stage=f"{topic}.2")
    assert error["code"] == "BATCH_TOO_LARGE"


def test_what_was_staged_before_a_refusal_stays_for_whoever_publishes_it(
    client: flight.FlightClient, topic: str
) -> None:
    stream = Stream(client, numbers().schema, topic, stage=topic)
    stream.push(numbers(1))
    assert "error" in stream.push(numbers(2), sequence=0)
    with pytest.raises(flight.FlightServerError):
        stream.close()
    publish(client, topic, 0, topic)
    assert values(client, topic) == [1]


def test_many_publishers_of_one_batch_publish_once(
    server: RunningServer, client: flight.FlightClient, topic: str
) -> None:
    for number in range(6):
        stage(client, topic, f"{topic}.{number}", numbers(number))
    together = threading.Barrier(6)

    def attempt(number: int) -> tuple[list[Json], bool]:
        with flight.FlightClient(server.flight) as own:
            together.wait(30)
            return publish(own, topic, 0, f"{topic}.{number}")

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(attempt, range(6)))
    assert sorted(replayed for _, replayed in answers) == [False] + [True] * 5
    assert all(committed == answers[0][0] for committed, _ in answers)
    assert len(values(client, topic)) == 1


# Sweeping, with a server of its own.


@pytest.fixture
def sweeping(tmp_path: Path) -> Generator[tuple[RunningServer, flight.FlightClient]]:
    """A server that keeps a stage for some seconds, and begins a segment for each flush."""
    limits = Limits(inline_bytes_max=0, stage_seconds_max=5, segment_bytes_max=1)
    with running_server(tmp_path / "data", limits=limits) as server:
        yield server, server.client()


def segments(server: RunningServer) -> int:
    return len(list((server.data_dir / "segments").iterdir()))


def test_a_stage_that_is_never_published_is_swept_and_its_space_reclaimed(
    sweeping: tuple[RunningServer, flight.FlightClient],
) -> None:
    server, client = sweeping
    create_topic(client, "t", ["n: int64"])
    stage(client, "t", "abandoned", *[numbers(n) for n in range(5)])
    push(client, "t", numbers(1))
    push(client, "t", numbers(2))
    until(lambda: segments(server) == 2)
    error = refused(client, "stage-publish", writer="w", batch=0, stages=["abandoned"])
    assert error["code"] == "STAGE_NOT_FOUND"
    assert values(client, "t") == [1, 2]


def test_aborted_stages_and_those_of_deleted_topics_give_their_space_back_at_once(
    tmp_path: Path,
) -> None:
    limits = Limits(inline_bytes_max=0, segment_bytes_max=1)
    with running_server(tmp_path / "data", limits=limits) as server:
        client = server.client()
        for topic in ("t", "gone"):
            create_topic(client, topic, ["n: int64"])
        stage(client, "t", "aborted", numbers(1), numbers(2))
        stage(client, "gone", "gone", numbers(1), numbers(2))
        stage(client, "t", "kept", numbers(3))
        push(client, "t", numbers(4))
        assert segments(server) == 6
        act(client, "stage-abort", writer="w", stages=["aborted"])
        until(lambda: segments(server) == 4)
        act(client, "delete-topic", topic="gone")
        until(lambda: segments(server) == 2)
        publish(client, "w", 0, "kept")
        assert values(client, "t") == [4, 3]


def test_a_publish_carries_offsets_of_a_consumer_in_its_writers_last_epoch(
    client: flight.FlightClient, topic: str
) -> None:
    source = f"{topic}-in"
    create_topic(client, source, KEYED, partition_key="key")
    push(client, source, keyed(("a", 1), ("a", 2), ("b", 3)))
    writer, body = f"{topic}-w", {"stages": [topic], "batch": 0}
    stage(client, topic, topic, numbers(1))
    offsets = {
        "consumer": f"{topic}-reader",
        "offsets": [
            {"topic": source, "partition": "a", "offset": 2},
            {"topic": full(source), "partition": "b", "offset": 1},
        ],
    }

    def committed() -> dict[str, int]:
        found = act(client, "get-offsets", consumer=f"{topic}-reader")["offsets"]
        return {entry["partition"]: entry["offset"] for entry in found}

    assert act(client, "transaction-begin", writer=writer) == {"epoch": 1}
    assert act(client, "transaction-begin", writer=writer) == {"epoch": 2}
    for epoch in ({}, {"epoch": 1}, {"epoch": 3}):
        error = refused(client, "stage-publish", writer=writer, **body, **epoch, offsets=offsets)
        assert (error["code"], error["epoch"]) == ("PUBLISH_FENCED", 2)
    assert (values(client, topic), committed()) == ([], {})
    for replayed in (False, True):
        answer = act(client, "stage-publish", writer=writer, **body, epoch=2, offsets=offsets)
        assert answer["replayed"] is replayed
    assert (values(client, topic), committed()) == ([1], {"a": 2, "b": 1})
    past_end = {**offsets, "offsets": [{"topic": source, "partition": "a", "offset": 3}]}
    stage(client, topic, f"{topic}-2", numbers(2))
    again = {"stages": [f"{topic}-2"], "batch": 1, "epoch": 2}
    error = refused(client, "stage-publish", writer=writer, **again, offsets=past_end)
    assert error["code"] == "OFFSET_OUT_OF_RANGE"
    assert (values(client, topic), committed()) == ([1], {"a": 2, "b": 1})


def test_a_publish_with_malformed_offsets_or_epoch_is_refused(
    client: flight.FlightClient, topic: str
) -> None:
    entry = {"topic": topic, "offset": 0}
    for wrong, said in (
        ({"epoch": 0}, "epoch"),
        ({"epoch": "1"}, "epoch"),
        ({"offsets": {"consumer": "", "offsets": []}}, "consumer"),
        ({"offsets": {"consumer": "c", "offsets": [{**entry, "offset": -1}]}}, "offset"),
        ({"offsets": {"consumer": "c", "offsets": [entry], "members": 1}}, "members"),
        ({"offsets": {"consumer": "c", "offsets": [{**entry, "topic": "nowhere"}]}}, "nowhere"),
    ):
        error = refused(client, "stage-publish", writer=topic, batch=0, stages=[], **wrong)
        assert said in error["message"], error
    assert refused(client, "transaction-begin", writer="")["code"] == "INVALID_ARGUMENT"
