"""A real server against a plain model of the log: whatever is done, both say the same."""

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from flight_calls import (
    Answer,
    Json,
    Stream,
    act,
    create_topic,
    error_of,
    get,
    read_answer,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from log_model import HOUR_US, Batch, Filter, Key, Read, Refused, Row, TopicModel, read

from wings_core.limits import Limits
from wings_server.testing import RunningServer, running_server

LIMITS = Limits(wire_rows_max=40, segment_bytes_max=32 * 1024, flush_bytes_max=8 * 1024)
"""So small that few rows are cut and merged, and fill segments and flushes."""

FIELDS = {
    "plain": ["n: int64", "text: string", "name: string", "number: int64"],
    "by-name": ["name: string not null", "n: int64", "text: string", "number: int64"],
    "by-number": ["n: int64", "text: string", "name: string", "number: int64 not null"],
}
"""The topics and their columns."""

KEY_COLUMNS = {"plain": None, "by-name": "name", "by-number": "number"}
KEYS: dict[str, tuple[Key, ...]] = {
    "plain": (None,),
    "by-name": ("a", "b", "", "ä / 'quoted' ☃"),
    "by-number": (0, -7, 2**63 - 1),
}

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STEPS_TO_RESTART = 8
"""A restart takes as long as twenty other steps."""
MINUTE_US = 60 * 1_000_000
UNBOUNDED = 1 << 62
WAIT_MS = 3
"""How long a fetch waits that cannot be satisfied."""
LONG_MS = 30_000
"""How long one would wait that can be, if it were wrong."""


class OneServer:
    """A server on one data directory, which machines share and restart."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._stack = ExitStack()
        self.machines = itertools.count()
        self.start()

    def start(self) -> None:
        self.server: RunningServer = self._stack.enter_context(
            running_server(self._data_dir, limits=LIMITS)
        )
        self.client = self.server.client()

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture
def one_server(tmp_path: Path) -> Iterator[OneServer]:
    server = OneServer(tmp_path / "data")
    yield server
    server.stop()


def time_text(microseconds: int) -> str:
    at = EPOCH + timedelta(microseconds=microseconds)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_number(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)


def now() -> int:
    return time.time_ns() // 1_000


def rows_of(topic: str) -> st.SearchStrategy[list[Json]]:
    """Rows of few different values, in lists of none to about a hundred."""
    key = st.sampled_from(KEYS[topic])
    row = st.fixed_dictionaries(
        {
            "n": st.integers(-3, 3) | st.none(),
            "text": st.sampled_from([None, "", "x", "long " * 20]),
            "name": key if topic == "by-name" else st.sampled_from([None, "a"]),
            "number": key if topic == "by-number" else st.sampled_from([None, 5]),
        }
    )
    many = st.tuples(st.lists(row, max_size=3), st.integers(1, 40))
    return st.one_of(st.lists(row, max_size=4), many.map(lambda drawn: drawn[0] * drawn[1]))


FILTERS = (
    Filter("n > 0", lambda row: row["n"] is not None and row["n"] > 0),
    Filter("n IS NULL OR text = 'x'", lambda row: row["n"] is None or row["text"] == "x"),
    Filter("length(text) > 5 AND NOT n = 1", lambda row: len(row["text"] or "") > 5
           and row["n"] not in (None, 1)),
    Filter("n > 100", lambda _: False),
)  # fmt: skip


class LogMachine(RuleBasedStateMachine):
    """Does to a server and to a model the same."""

    def __init__(self, one_server: OneServer) -> None:
        super().__init__()
        self.one = one_server
        self.namespace = f"tenants/model/namespaces/machine-{next(one_server.machines)}"
        self.topics: dict[str, TopicModel] = {}
        self.consumers: dict[tuple[str, str, Key], int] = {}
        """Offsets by consumer, topic and partition."""
        self.steps = 0
        """Since the last restart."""

    @property
    def client(self) -> flight.FlightClient:
        return self.one.client

    def full(self, topic: str) -> str:
        return f"{self.namespace}/topics/{topic}"

    @initialize()
    def begin(self) -> None:
        act(self.client, "create-namespace", namespace=self.namespace)
        for topic in FIELDS:
            self.create(topic)

    def create(self, topic: str) -> None:
        key = KEY_COLUMNS[topic]
        made = create_topic(self.client, self.full(topic), FIELDS[topic], key)
        self.topics[topic] = TopicModel(made["uuid"], key)

    # What can be done.

    @rule(topic=st.sampled_from(list(FIELDS)), data=st.data())
    def push(self, topic: str, data: st.DataObject) -> None:
        model = self.topics[topic]
        command: Json = {"topic": self.full(topic)}
        partition: Key = None
        if model.key is not None and data.draw(st.booleans(), label="one partition"):
            partition = command["partition"] = data.draw(st.sampled_from(KEYS[topic]))
        producer = data.draw(st.sampled_from([None, None, "p", "q"]), label="producer")
        sequence = 0
        if producer is not None:
            following = model.next_sequence(producer)
            sequences = [following, following, max(0, following - 2), following + 1]
            sequence = data.draw(st.sampled_from(sequences), label="sequence")
            command |= {"producer_id": producer, "sequence": sequence}
        stream = Stream(self.client, schema_of(topic), **command)
        count = data.draw(st.integers(1, 3), label="batches")
        pipelined = data.draw(st.booleans(), label="pipelined")
        refused: Refused | None = None
        batches = [draw_batch(data, model, topic, partition, timed=pipelined) for _ in range(count)]
        if pipelined:
            for batch in batches:
                # The stream ends as soon as the server has refused a batch.
                with suppress(flight.FlightError):
                    send(stream, topic, batch)
        for index, batch in enumerate(batches):
            if not pipelined:
                send(stream, topic, batch)
            answer = answer_unless_lost(stream) if pipelined else stream.answer()
            identity = None if producer is None else (producer, sequence + index)
            try:
                expected = self._push(model, batch, partition, identity, answer)
            except Refused as refusal:
                refused = refusal
                break
            if answer is not None or not pipelined:
                assert answer == {"batch": index, "committed": expected}
        check_end(stream, refused)

    def _push(
        self,
        model: TopicModel,
        batch: Batch,
        partition: Key,
        identity: tuple[str, int] | None,
        answer: Json | None,
    ) -> list[Json]:
        """Commit a batch to the model as the server did; return its part of the answer."""
        committed: list[Json] = (answer or {}).get("committed", [])
        # The server's own time cannot be foretold. It is the earliest one in the answer, but where
        # all partitions are ahead of it, and then any will do.
        at = min((time_number(part["timestamp"]) for part in committed), default=now())
        lasts = [model.last_timestamp(part["partition"]) for part in committed]
        replayed = identity is not None and identity[1] < model.next_sequence(identity[0])
        if batch.timestamp is None and committed and not replayed:
            assert at in lasts or abs(at - now()) < MINUTE_US
        try:
            expected = model.push(batch, partition, identity, at)
        except Refused as refused:
            if answer is not None:
                check_refusal(answer["error"], refused)
            raise
        return [part | {"timestamp": time_text(part["timestamp"])} for part in expected]

    @rule(topic=st.sampled_from(list(FIELDS)), data=st.data())
    def read(self, topic: str, data: st.DataObject) -> None:
        model = self.topics[topic]
        key = data.draw(st.sampled_from(KEYS[topic]), label="partition")
        log = model.log(key)
        offset, ticket = self._draw_ticket(topic, key, data)
        row_filter = data.draw(st.sampled_from([None, None, *FILTERS]), label="filter")
        if row_filter is not None:
            ticket["filter"] = row_filter.sql
        kind = ticket["kind"] = data.draw(st.sampled_from(["fetch", "scan", "follow"]))
        stop, bounds = len(log), None
        if kind == "scan" and data.draw(st.booleans(), label="ends"):
            stop = ticket["end_offset"] = offset + data.draw(st.integers(0, len(log) + 1))
        elif kind == "fetch":
            most = data.draw(st.integers(1, 2 * len(log) + 2), label="max_messages")
            least = data.draw(st.integers(1, most), label="min_messages")
            bounds = (least, most)
            ticket |= {"min_messages": least, "max_messages": most}
        elif kind == "follow":
            bounds = (UNBOUNDED, UNBOUNDED)
        expected = read(log, offset, stop, row_filter, bounds)
        if kind != "scan":
            ticket |= self._draw_deadline(expected.end, data)
        answer = get(self.client, **ticket)
        if expected.end == "deadline" and row_filter is not None:
            # A filter may be interrupted by the deadline, after a page at least.
            assert answer.next_offset > offset or offset >= len(log)
            expected = read(log, offset, answer.next_offset, row_filter, bounds)
        check_answer(answer, expected, topic, ticket)
        assert answer.log_end_offset == len(log)
        check_ranges(answer, offset, filtered=row_filter is not None)

    def _draw_ticket(self, topic: str, key: Key, data: st.DataObject) -> tuple[int, Json]:
        """Draw where to begin, as a number and as it is said, and which columns to read."""
        model = self.topics[topic]
        log = model.log(key)
        ticket: Json = {"topic": self.full(topic)}
        if model.key is not None:
            ticket["partition"] = key
        row = data.draw(st.integers(0, len(log)), label="as old as")
        at = log[row].timestamp if row < len(log) else 0
        at += data.draw(st.integers(-1, 1), label="microseconds later")
        offset, ticket["offset"] = data.draw(
            st.one_of(
                st.integers(0, len(log) + 2).map(lambda number: (number, number)),
                st.just((0, "earliest")),
                st.just((len(log), "latest")),
                st.just((model.first_at(key, at), {"timestamp": time_text(at)})),
            ),
            label="offset",
        )
        columns = st.lists(st.sampled_from(list(names_of(topic))), min_size=1, unique=True)
        if data.draw(st.booleans(), label="some columns"):
            ticket["columns"] = data.draw(columns, label="columns")
        if data.draw(st.booleans(), label="system columns"):
            ticket["system_columns"] = True
        return offset, ticket

    def _draw_deadline(self, end: str, data: st.DataObject) -> Json:
        if end != "deadline":
            return {"timeout_ms": LONG_MS}
        past = {"deadline": "2020-01-01T00:00:00Z"}
        return data.draw(st.sampled_from([past, {"timeout_ms": WAIT_MS}]), label="deadline")

    @rule(topic=st.sampled_from(list(FIELDS)), data=st.data())
    def read_what_an_info_says(self, topic: str, data: st.DataObject) -> None:
        model = self.topics[topic]
        splits = data.draw(st.integers(1, 5), label="splits")
        command = {"topic": self.full(topic), "splits": splits, "system_columns": True}
        info = self.client.get_flight_info(
            flight.FlightDescriptor.for_command(json.dumps(command).encode())
        )
        logs = model.logs or ({None: []} if model.key is None else {})
        assert info.total_records == sum(len(log) for log in logs.values())
        pieces = {key: max(1, min(splits, len(log))) for key, log in logs.items()}
        assert len(info.endpoints) == sum(pieces.values())
        found: dict[Key, list[Json]] = {key: [] for key in logs}
        for endpoint in info.endpoints:
            key = json.loads(endpoint.ticket.ticket).get("partition")
            answer = read_answer(self.client.do_get(endpoint.ticket))
            found[key] += answer.table.to_pylist()
        for key, log in logs.items():
            assert found[key] == shown(list(enumerate(log)), names_of(topic), system_columns=True)

    @rule(topic=st.sampled_from(list(FIELDS)))
    def delete_and_create_again(self, topic: str) -> None:
        name = self.full(topic)
        assert act(self.client, "delete-topic", topic=name)["uuid"] == self.topics[topic].uuid
        key = KEYS[topic][0]
        with pytest.raises(flight.FlightServerError) as caught:
            get(self.client, topic=name, partition=key, offset=0)
        assert error_of(caught.value)["code"] == "TOPIC_NOT_FOUND"
        before = self.topics[topic].uuid
        self.create(topic)
        assert self.topics[topic].uuid != before
        for place in [place for place in self.consumers if place[1] == topic]:
            del self.consumers[place]

    @rule(
        consumer=st.sampled_from(["reader", "ü"]),
        topics=st.lists(st.sampled_from(list(FIELDS)), min_size=1, max_size=3),
        data=st.data(),
    )
    def commit_offsets(self, consumer: str, topics: list[str], data: st.DataObject) -> None:
        offsets: list[Json] = []
        wanted: dict[tuple[str, str, Key], int] = {}
        ends: dict[tuple[str, str, Key], int] = {}
        for topic in topics:
            key = data.draw(st.sampled_from(KEYS[topic]))
            place = (consumer, topic, key)
            ends[place] = len(self.topics[topic].log(key))
            wanted[place] = offset = data.draw(st.integers(0, ends[place] + 1))
            offsets.append({"topic": self.full(topic), "partition": key, "offset": offset})
        unknown = data.draw(st.sampled_from([False, False, False, True]), label="unknown topic")
        if unknown:
            offsets.append({"topic": self.full("unknown"), "partition": None, "offset": 0})
            with pytest.raises(flight.FlightServerError) as caught:
                act(self.client, "commit-offsets", consumer=self.own(consumer), offsets=offsets)
            assert error_of(caught.value)["code"] == "TOPIC_NOT_FOUND"
        elif any(offset > ends[place] for place, offset in wanted.items()):
            with pytest.raises(flight.FlightServerError) as caught:
                act(self.client, "commit-offsets", consumer=self.own(consumer), offsets=offsets)
            assert error_of(caught.value)["code"] == "OFFSET_OUT_OF_RANGE"
        else:
            act(self.client, "commit-offsets", consumer=self.own(consumer), offsets=offsets)
            self.consumers |= wanted

    def own(self, consumer: str) -> str:
        """Return the consumer's name: consumers are not of a namespace."""
        return f"{consumer} of {self.namespace}"

    @rule()
    def drain(self) -> None:
        """Move small pushes from metadata to storage now, not only from time to time."""
        drain = self.one.server.server.log.drain
        assert drain is not None
        assert drain.run()

    @precondition(lambda self: self.steps >= STEPS_TO_RESTART)
    @rule()
    def restart(self) -> None:
        self.steps = 0
        self.one.stop()
        self.one.start()

    # What must hold.

    @invariant()
    def count_steps(self) -> None:
        self.steps += 1

    @invariant()
    def every_partition_is_as_in_the_model(self) -> None:
        for topic, model in self.topics.items():
            logs = model.logs or ({None: []} if model.key is None else {})
            states = act(self.client, "partition-states", topic=self.full(topic))
            assert [state["partition"] for state in states] == sorted(logs, key=sort_key)
            for state in states:
                key = state["partition"]
                last = model.last_timestamp(key)
                assert (state["log_start_offset"], state["next_offset"]) == (0, len(logs[key]))
                assert state["last_timestamp"] == (None if last is None else time_text(last))
                assert (state["bytes"] > 0) == bool(logs[key])
                self._check_content(topic, key, logs[key])

    def _check_content(self, topic: str, key: Key, log: list[Row]) -> None:
        ticket: Json = {"topic": self.full(topic), "system_columns": True}
        if self.topics[topic].key is not None:
            ticket["partition"] = key
        answer = get(self.client, kind="scan", **ticket)
        whole = Read(list(enumerate(log)), "end_offset", len(log))
        check_answer(answer, whole, topic, ticket)

    @invariant()
    def consumers_are_where_the_model_says(self) -> None:
        for consumer in {consumer for consumer, _, _ in self.consumers}:
            found = act(self.client, "get-offsets", consumer=self.own(consumer))["offsets"]
            places = {(entry["topic"], entry["partition"]): entry["offset"] for entry in found}
            assert len(places) == len(found)
            assert places == {
                (self.full(topic), key): offset
                for (who, topic, key), offset in self.consumers.items()
                if who == consumer
            }


def draw_batch(
    data: st.DataObject, model: TopicModel, topic: str, partition: Key, *, timed: bool
) -> Batch:
    """Draw a batch; with `timed`, the model can tell its outcome without asking the server."""
    rows = data.draw(rows_of(topic), label="rows")
    if partition is not None and data.draw(st.sampled_from([True, True, True, False])):
        rows = [{**row, str(model.key): partition} for row in rows]
    expected = None
    if data.draw(st.sampled_from([False, False, True]), label="compare and append"):
        keys = [row[model.key] if model.key else None for row in rows]
        right = len(model.log(partition if partition is not None or not keys else keys[0]))
        expected = max(0, right + data.draw(st.sampled_from([0, 0, 0, -1, 1])))
    past = st.integers(1_700_000_000, 1_700_000_100).map(lambda seconds: seconds * 1_000_000)
    ahead = st.sampled_from([HOUR_US // 2, 2 * HOUR_US]).map(lambda later: now() + later)
    times = past | past | ahead if timed else st.none() | past | ahead
    timestamp = data.draw(times, label="timestamp")
    return Batch(rows, expected, timestamp)


def names_of(topic: str) -> list[str]:
    return [field.split(": ")[0] for field in FIELDS[topic]]


def schema_of(topic: str) -> pa.Schema:
    types = {"int64": pa.int64(), "string": pa.string()}
    fields = [field.split(": ") for field in FIELDS[topic]]
    return pa.schema(
        [
            pa.field(name, types[kind.split(" ")[0]], nullable="not null" not in kind)
            for name, kind in fields
        ]
    )


def send(stream: Stream, topic: str, batch: Batch) -> None:
    metadata: Json = {}
    if batch.expected_offset is not None:
        metadata["expected_offset"] = batch.expected_offset
    if batch.timestamp is not None:
        metadata["timestamp"] = time_text(batch.timestamp)
    stream.send(pa.RecordBatch.from_pylist(batch.rows, schema_of(topic)), **metadata)


def sort_key(key: Key) -> Any:
    return key if key is not None else 0


def shown(rows: list[tuple[int, Row]], columns: list[str], *, system_columns: bool) -> list[Json]:
    """Return rows as a table of the columns shows them."""
    result: list[Json] = []
    for offset, row in rows:
        values = {name: row.values[name] for name in columns}
        if system_columns:
            at = EPOCH + timedelta(microseconds=row.timestamp)
            values |= {"__offset": offset, "__timestamp": at}
        result.append(values)
    return result


def check_answer(answer: Answer, expected: Read, topic: str, ticket: Json) -> None:
    columns = ticket.get("columns", names_of(topic))
    system_columns = ticket.get("system_columns", False)
    names = [*columns, "__offset", "__timestamp"] if system_columns else columns
    assert answer.table.schema.names == names
    rows = shown(expected.rows, columns, system_columns=system_columns)
    assert answer.table.to_pylist() == rows
    assert (answer.end, answer.next_offset) == (expected.end, expected.next_offset)


def check_ranges(answer: Answer, offset: int, *, filtered: bool) -> None:
    """The chunks follow one another up to `next_offset`, with gaps only where a filter dropped."""
    for (start, end), rows in zip(answer.ranges, answer.chunk_rows, strict=True):
        assert rows <= LIMITS.wire_rows_max
        if filtered:
            assert start >= offset
            assert rows <= end - start + 1
        else:
            assert (start, end) == (offset, offset + rows - 1)
        offset = end + 1
    assert answer.next_offset >= offset if filtered else answer.next_offset == offset


def answer_unless_lost(stream: Stream) -> Json | None:
    """Read an answer; None where pyarrow has lost it, which it does once a write has failed."""
    try:
        answer = stream.answer()
    except flight.FlightError:
        return None
    assert answer is not None
    return answer


def check_end(stream: Stream, refused: Refused | None) -> None:
    """Finish a stream: nothing more is committed, and what was refused is said again."""
    if refused is None:
        stream.close()
        assert stream.answer() is None
        return
    with suppress(flight.FlightError):  # The same that closing raises.
        stream.writer.done_writing()
        while (answer := stream.answer()) is not None:
            check_refusal(answer["error"], refused)
    with pytest.raises(flight.FlightError) as caught:
        stream.close()
    check_refusal(error_of(caught.value), refused)


def check_refusal(error: Json, refused: Refused) -> None:
    assert error["code"] == refused.code, error
    assert refused.facts.items() <= error.items()


def run(
    one_server: OneServer,
    *,
    examples: int,
    steps: int,
    machine_type: type[LogMachine] = LogMachine,
) -> None:
    def machine() -> LogMachine:
        return machine_type(one_server)

    run_state_machine_as_test(
        machine,  # pyright: ignore[reportArgumentType] - a function does
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.mark.timeout(600)  # A failure takes minutes to be made small.
def test_a_server_does_as_a_plain_model_of_the_log(one_server: OneServer) -> None:
    run(one_server, examples=5, steps=30)


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_a_server_does_as_a_plain_model_of_the_log_for_long(one_server: OneServer) -> None:
    run(one_server, examples=1_500, steps=60)
