"""What a client of the metadata service does when others share its calls, and when it is alone."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import grpc
import pyarrow as pa
import pytest
from breakable_proxy import breakable
from fix_metadata import Clock, RemoteOverSqlite, batch_of
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tables import each

import wings_core.protocol.v1
from wings_core.errors import (
    ERRORS_BY_CODE,
    Internal,
    InvalidArgument,
    NamespaceNotFound,
    TopicNotFound,
    Unavailable,
    error_from_json,
)
from wings_core.metadata.remote import RemoteMetadata
from wings_core.metadata.remote.channel import (
    BODY_BYTES_MAX,
    ServiceChannel,
    Stub,
    error_body,
    error_of,
    status_of,
)
from wings_core.metadata.remote.deduplicate import CallOutcome
from wings_core.model import Accepted, Position, Topic
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED
from wings_core.protocol.v1 import admin_pb2, offset_registry_pb2
from wings_core.times import Deadline, now_us
from wings_server.metadata import locations, service
from wings_server.metadata.handlers import services
from wings_server.metadata.requests import snake_case

LONG = 60.0
SCHEMA = pa.schema([("n", pa.int64())])
TOPIC = DEFAULT_NAMESPACE.topic("topic")


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteOverSqlite]:
    metadata = RemoteOverSqlite(tmp_path / "metadata.db", Clock(now_us()))
    yield metadata
    metadata.close()


@pytest.fixture
def topic(remote: RemoteOverSqlite) -> Topic:
    return remote.admin.create_topic(TOPIC, SCHEMA)


@pytest.fixture
def channel(remote: RemoteOverSqlite) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(str(remote.service.address)) as connected:
        yield connected


def push(metadata: RemoteMetadata, topic: Topic) -> None:
    (result,) = metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
    assert isinstance(result, Accepted)


def test_every_rpc_has_a_handler(remote: RemoteOverSqlite) -> None:
    for descriptor, handlers in services(remote.served, "id"):
        for method in descriptor.methods:
            if method.name != "OffsetLocation" and not method.server_streaming:
                assert callable(getattr(handlers, snake_case(method.name)))


def test_the_service_tells_its_health(channel: grpc.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)  # Its stubs do not know of its methods.
    for name in ("", "wings.v1.AdminService", "wings.v1.OffsetRegistryService"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=LONG)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_thousand_waits_at_one_place_are_one_call(remote: RemoteOverSqlite, topic: Topic) -> None:
    heard = threading.Semaphore(0)
    watches = [
        remote.registry.watch([place(topic)], heard.release)  # One event loop holds them all.
        for _ in range(1_000)
    ]
    begun = remote.service.waits_begun
    for watch in watches:
        watch.__enter__()
    assert remote.registry.waiting_calls == 1
    push(remote, topic)
    for _ in range(1_000):
        assert heard.acquire(timeout=LONG)
    assert remote.service.waits_begun - begun <= 2
    for watch in watches:
        watch.__exit__(None, None, None)
    limit = Deadline.after(LONG)
    while remote.registry.waiting_calls and not limit.passed:
        threading.Event().wait(0.01)  # One that was just beginning to wait again is leaving.
    assert remote.registry.waiting_calls == 0


def test_a_thousand_waits_at_places_of_their_own_wait_at_once(
    remote: RemoteOverSqlite, channel: grpc.Channel, topic: Topic
) -> None:
    stub = Stub(channel, "OffsetRegistryService")
    futures = [
        stub.OffsetLocation.future(waiting_request(topic, offset), timeout=LONG * 2)
        for offset in range(1_000)
    ]
    limit = Deadline.after(LONG)
    while remote.service.waiting < 1_000 and not limit.passed:
        threading.Event().wait(0.01)
    assert remote.service.waiting == 1_000
    remote.registry.commit([batch_of(topic, {UNPARTITIONED: 1_000})])
    assert all(future.result(LONG).locations for future in futures)


def test_a_look_serves_those_who_were_waiting_before_it_and_nobody_who_comes_later(
    remote: RemoteOverSqlite, topic: Topic
) -> None:
    def look(since: float | None) -> int:
        located = remote.registry.locate(topic.uuid, UNPARTITIONED, 0, 10, since)
        return located.log_end_offset

    waiting_since = time.monotonic()
    assert look(waiting_since) == 0
    push(remote, topic)
    assert look(waiting_since) == 1, "a look that found nothing serves no other"
    push(remote, topic)
    assert look(waiting_since) == 1, "as it was when the last look began"
    assert look(None) == 2
    push(remote, topic)
    assert look(time.monotonic()) == 3


def test_a_location_is_answered_when_it_is_there_and_none_at_the_deadline(
    remote: RemoteOverSqlite, topic: Topic
) -> None:
    where = (topic.uuid, UNPARTITIONED, 0)
    assert remote.registry.offset_location(*where, Deadline.after(0.1)) is None
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(remote.registry.offset_location, *where, Deadline.after(LONG))
        push(remote, topic)
        located = future.result(LONG)
    assert located is not None
    assert located.locations[0].end_offset == 0


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_clock_that_is_off_by_minutes_shortens_and_lengthens_no_wait(
    remote: RemoteOverSqlite, topic: Topic, minutes: int
) -> None:
    def clock() -> int:
        return now_us() + minutes * 60_000_000

    with RemoteMetadata(str(remote.service.address), clock=clock) as node:
        where = (topic.uuid, UNPARTITIONED, 0)
        node.registry.partition_state(*where[:2])  # It connects.
        begun = remote.service.waits_begun
        assert node.registry.offset_location(*where, Deadline.after(2)) is None
        # It waited for it, once or (for the last milliseconds) twice, rather than again and again.
        assert 1 <= remote.service.waits_begun - begun <= 3
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(node.registry.offset_location, *where, Deadline.after(LONG))
            push(remote, topic)
            assert future.result(LONG) is not None


def test_a_call_without_sent_at_is_bounded_by_its_grpc_deadline(
    channel: grpc.Channel, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locations, "ANSWER_MARGIN_SECONDS", LONG)
    request = waiting_request(topic, 0)
    request.ClearField("sent_at")
    answer = Stub(channel, "OffsetRegistryService").OffsetLocation(request, timeout=LONG + 0.3)
    assert not answer.locations


def test_fields_that_the_service_does_not_know_are_ignored(
    channel: grpc.Channel, topic: Topic
) -> None:
    del topic
    known = admin_pb2.GetTopicRequest(name=str(TOPIC)).SerializeToString()
    newer = known + bytes([(100 << 3 | 2) & 0x7F | 0x80, (100 << 3 | 2) >> 7, 3]) + b"new"
    call = channel.unary_unary(
        "/wings.v1.AdminService/GetTopic",
        request_serializer=bytes,
        response_deserializer=admin_pb2.Topic.FromString,
    )
    assert call(newer, timeout=LONG).name == str(TOPIC)


STATUS = {
    "NAMESPACE_NOT_FOUND": "NOT_FOUND",
    "TOPIC_NOT_FOUND": "NOT_FOUND",
    "GROUP_NOT_FOUND": "NOT_FOUND",
    "STAGE_NOT_FOUND": "NOT_FOUND",
    "TOKEN_NOT_FOUND": "NOT_FOUND",
    "NAMESPACE_NOT_EMPTY": "FAILED_PRECONDITION",
    "OFFSET_MISMATCH": "FAILED_PRECONDITION",
    "OUT_OF_ORDER_SEQUENCE": "FAILED_PRECONDITION",
    "PUBLISH_FENCED": "FAILED_PRECONDITION",
    "FENCED_MEMBER": "FAILED_PRECONDITION",
    "INVALID_RECORD_STATE": "FAILED_PRECONDITION",
    "OFFSET_OUT_OF_RANGE": "OUT_OF_RANGE",
    "BATCH_TOO_LARGE": "RESOURCE_EXHAUSTED",
    "STORAGE_CORRUPT": "DATA_LOSS",
}
"""Where the status is not the code's own name, and not INVALID_ARGUMENT."""


@each("code", sorted(ERRORS_BY_CODE))
def test_every_error_has_its_status_and_its_whole_json(code: str) -> None:
    error = ERRORS_BY_CODE[code]("what happened", next_offset=7, column="ü")
    argument = isinstance(error, InvalidArgument)
    assert status_of(error).name == STATUS.get(code, "INVALID_ARGUMENT" if argument else code)
    back = error_from_json(json.loads(error_body(error)))
    assert type(back) is type(error)
    assert back.to_json() == error.to_json()


def test_a_long_error_is_cut_to_what_metadata_may_hold(remote: RemoteOverSqlite) -> None:
    error = Internal("ü" * 10_000, long="x" * 10_000, short=1)
    assert len(error_body(error)) <= BODY_BYTES_MAX
    assert b'"short": 1' in error_body(error)
    with pytest.raises(TopicNotFound, match="there is no topic"):
        remote.admin.get_topic(DEFAULT_NAMESPACE.topic("x" * 63))


def test_lists_come_in_pages(channel: grpc.Channel, remote: RemoteOverSqlite) -> None:
    names = [DEFAULT_NAMESPACE.topic(f"topic-{number:03}") for number in range(250)]
    for name in names:
        remote.served.admin.create_topic(name, SCHEMA)
    assert [topic.name for topic in remote.admin.list_topics(DEFAULT_NAMESPACE)] == names
    stub = Stub(channel, "AdminService")
    first = stub.ListTopics(admin_pb2.ListTopicsRequest(parent=str(DEFAULT_NAMESPACE), page_size=2))
    assert len(first.topics) == 2
    remote.admin.delete_topic(names[1])  # The page goes on after it all the same.
    second = stub.ListTopics(
        admin_pb2.ListTopicsRequest(
            parent=str(DEFAULT_NAMESPACE), page_size=1, page_token=first.next_page_token
        )
    )
    assert [topic.name for topic in second.topics] == [str(names[2])]
    for bad in ({"page_size": -1}, {"page_token": "?"}, {"page_token": "AAAA"}):
        request = admin_pb2.ListTopicsRequest(parent=str(DEFAULT_NAMESPACE), **bad)  # pyright: ignore[reportArgumentType]
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListTopics(request)
        assert isinstance(error_of(caught.value, "here"), InvalidArgument)


def test_a_list_of_topics_with_long_schemas_comes_in_answers_that_fit(
    remote: RemoteOverSqlite, channel: grpc.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [DEFAULT_NAMESPACE.topic(f"topic-{number}") for number in range(7)]
    for name in names:
        remote.served.admin.create_topic(name, SCHEMA)
    request = admin_pb2.ListTopicsRequest(parent=str(DEFAULT_NAMESPACE))
    one = Stub(channel, "AdminService").ListTopics(request).topics[0].ByteSize()
    for room, first in ((1, 1), (3 * one, 3)):
        monkeypatch.setattr("wings_server.metadata.handlers.TOPICS_BYTES_MAX", room)
        assert len(Stub(channel, "AdminService").ListTopics(request).topics) == first
        assert [topic.name for topic in remote.admin.list_topics(DEFAULT_NAMESPACE)] == names


def test_a_topic_created_again_is_another_one_at_the_first_look(
    remote: RemoteOverSqlite, topic: Topic
) -> None:
    assert remote.admin.get_topic(TOPIC).uuid == topic.uuid
    remote.served.admin.delete_topic(TOPIC)  # As another node does.
    again = remote.served.admin.create_topic(TOPIC, SCHEMA)
    with pytest.raises(TopicNotFound):
        remote.registry.locate(topic.uuid, UNPARTITIONED, 0, 1)
    assert remote.admin.get_topic(TOPIC).uuid == again.uuid


def test_a_service_with_too_many_calls_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CALLS_RUNNING_MAX", 1)
    busy = RemoteOverSqlite(tmp_path / "metadata.db", Clock(now_us()))
    topic = busy.admin.create_topic(TOPIC, SCHEMA)
    with busy.registry.watch([place(topic)], lambda: None):
        limit = Deadline.after(LONG)
        while busy.service.waiting == 0 and not limit.passed:
            threading.Event().wait(0.01)
        with pytest.raises(Unavailable, match="too many calls") as caught:
            busy.admin.list_namespaces()
    assert "in_doubt" not in caught.value.facts, "nothing was done"
    busy.close()


def test_a_connection_that_takes_a_while_is_waited_for(remote: RemoteOverSqlite) -> None:
    with (
        breakable(f"grpc://{remote.service.address}") as proxy,
        RemoteMetadata(proxy.endpoint.removeprefix("grpc://")) as node,
        ThreadPoolExecutor(1) as threads,
    ):
        proxy.stall_answers()
        future = threads.submit(node.admin.list_namespaces)
        with pytest.raises(TimeoutError):
            future.result(0.5)
        proxy.go_on()
        assert future.result(LONG)


def test_a_node_at_a_wrong_address_says_so() -> None:
    something = grpc.server(ThreadPoolExecutor(1))
    port = something.add_insecure_port("127.0.0.1:0")
    something.start()
    try:
        for address, reason, seconds in (
            ("127.0.0.1:1", Unavailable, 0.5),
            (f"127.0.0.1:{port}", Internal, LONG),
        ):
            with (
                RemoteMetadata(address) as node,
                pytest.raises(reason, match=f"no metadata service answers at {address}"),
            ):
                node.store_id(seconds)
    finally:
        something.stop(None)


def test_a_tenant_is_there_while_it_has_a_namespace(channel: grpc.Channel) -> None:
    stub = Stub(channel, "AdminService")
    found = stub.GetTenant(admin_pb2.GetTenantRequest(name="tenants/default"))
    assert found.name == "tenants/default"
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetTenant(admin_pb2.GetTenantRequest(name="tenants/nobody"))
    assert isinstance(error_of(caught.value, "here"), NamespaceNotFound)


def test_a_commit_whose_answer_was_lost_is_found_out_and_not_made_twice(
    remote: RemoteOverSqlite, topic: Topic
) -> None:
    with (
        breakable(f"grpc://{remote.service.address}") as proxy,
        RemoteMetadata(proxy.endpoint.removeprefix("grpc://")) as node,
        ThreadPoolExecutor(1) as threads,
    ):
        push(node, topic)
        proxy.stall_answers()
        heard = threading.Event()
        with remote.served.registry.watch([place(topic, 1)], heard.set):
            future = threads.submit(push, node, topic)
            assert heard.wait(LONG), "it is committed"
        proxy.cut()
        proxy.go_on()
        future.result(LONG)
        push(node, topic)
    assert remote.registry.partition_state(topic.uuid, UNPARTITIONED).next_offset == 3


def test_what_a_node_knows_is_read_on_without_the_service(
    remote: RemoteOverSqlite, topic: Topic
) -> None:
    with (
        breakable(f"grpc://{remote.service.address}") as proxy,
        RemoteMetadata(proxy.endpoint.removeprefix("grpc://")) as node,
    ):
        for _ in range(3):
            push(node, topic)
        known = node.admin.get_topic(TOPIC)
        located = node.registry.locate(topic.uuid, UNPARTITIONED, 0, 10)
        proxy.stop_listening()
        assert node.registry.locate(topic.uuid, UNPARTITIONED, 0, 10) == located
        assert node.registry.locate(topic.uuid, UNPARTITIONED, 1, 1).locations[0].start_offset == 1
        assert node.registry.locate(topic.uuid, UNPARTITIONED, 3, 1).locations == ()
        assert node.admin.get_topic(TOPIC) == known
        with pytest.raises(Unavailable):
            node.registry.commit([batch_of(topic, {UNPARTITIONED: 1})])
        with pytest.raises(Unavailable):
            node.admin.get_topic(DEFAULT_NAMESPACE.topic("never-seen"))
        woken = threading.Event()
        with node.registry.watch([place(topic, 3)], woken.set):
            push(remote, topic)
            proxy.listen_again()
            assert woken.wait(LONG), "the wait recovers by itself"
        push(node, topic)


def place(topic: Topic, offset: int = 0) -> Position:
    return Position(topic.uuid, UNPARTITIONED, offset)


def waiting_request(topic: Topic, offset: int) -> offset_registry_pb2.OffsetLocationRequest:
    request = offset_registry_pb2.OffsetLocationRequest(
        topic_uuid=topic.uuid, partition=UNPARTITIONED, offset=offset
    )
    now = now_us()
    request.sent_at.FromMicroseconds(now)
    request.deadline.FromMicroseconds(now + 60_000_000)
    return request


@pytest.mark.programs
def test_the_generated_code_is_that_of_the_proto_files(tmp_path: Path) -> None:
    core = Path(wings_core.protocol.v1.__file__).parents[3]
    protos = sorted((core / "wings_core/protocol").rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={core}"]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*command, *map(str, protos)], check=True, timeout=150)
    generated = sorted(tmp_path.rglob("*_pb2*"))
    assert len(generated) == 2 * len(protos)
    for file in generated:
        assert (core / file.relative_to(tmp_path)).read_bytes() == file.read_bytes(), file.name


def test_an_answer_that_is_not_understood_ends_the_call() -> None:
    """Such as one of a later version: all who share the call would wait for it until their end."""

    class Answered:
        """A call that has ended, and its method."""

        def future(self, request: bytes, timeout: float) -> "Answered":
            del request, timeout
            return self

        def add_done_callback(self, call: Callable[[object], None]) -> None:
            with suppress(ValueError):  # As gRPC does, which logs it.
                call(self)

        def result(self) -> bytes:
            return b""

        def cancel(self) -> None: ...

    def convert(answer: bytes) -> int:
        raise ValueError(f"what is {answer!r}?")

    outcomes: list[CallOutcome[int]] = []
    channel = ServiceChannel("127.0.0.1:1")
    channel.begin(cast("Any", Answered()), b"", 1.0, convert, outcomes.append)
    channel.close()
    (outcome,) = outcomes
    assert isinstance(outcome.error, Internal)
