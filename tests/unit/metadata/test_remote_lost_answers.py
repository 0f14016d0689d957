"""Changes at a metadata service whose answer is lost: made once, and never to something newer."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from breakable_proxy import breakable
from fix_metadata import NOON, SCHEMA, Clock, RemoteOverSqlite

from wings_core.errors import (
    GroupNotFound,
    Internal,
    NamespaceNotFound,
    PublishFenced,
    ResourceExhausted,
    TopicNotFound,
    Unavailable,
)
from wings_core.metadata.remote import RemoteMetadata, channel
from wings_core.metadata.remote.channel import Stub
from wings_core.model import NamespaceState, ShareConfig, ShareGroup, Topic, TopicConfig
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.partitions import UNPARTITIONED
from wings_core.protocol.v1 import admin_pb2

LONG = 60.0
TOPIC = DEFAULT_NAMESPACE.topic("topic")
ELSEWHERE = NamespaceName("acme", "elsewhere")


class Losing:
    """A service, and a node of it that does not hear the first answer to a change.

    Attributes:
        served: What the service serves.
        target: Where it does.
        node: The node.
        lose: Has the answer to the first call of a method of the store get lost.
        lost: Set when it was carried out.
        find_again: Breaks the node's connection; the next one works.
    """

    def __init__(self, remote: RemoteOverSqlite, node: RemoteMetadata) -> None:
        self.served = remote.served
        self.target = str(remote.service.address)
        self.node = node
        self.lose: Callable[[object, str], None]
        self.lost = threading.Event()
        self.find_again: Callable[[], None]

    def run(
        self, change: Callable[[], object], meanwhile: Callable[[], object] = lambda: None
    ) -> "Future[object]":
        """Make a change whose answer is lost, and another one before it is asked for again."""
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(change)
            while not self.lost.wait(0.05):
                assert not future.done(), f"it was not carried out: {future.exception()}"
            meanwhile()
            self.find_again()
        return future


@pytest.fixture
def losing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Losing]:
    with ExitStack() as opened:
        remote = RemoteOverSqlite(tmp_path / "metadata.db", Clock(NOON))
        opened.callback(remote.close)
        proxy = opened.enter_context(breakable(f"grpc://{remote.service.address}"))
        node = RemoteMetadata(proxy.endpoint.removeprefix("grpc://"))
        opened.enter_context(node)
        losing = Losing(remote, node)

        def lose(store: object, method: str) -> None:
            carry_out = getattr(store, method)

            def carried_out(*args: object, **options: object) -> object:
                result = carry_out(*args, **options)
                if not losing.lost.is_set():
                    proxy.stall_answers()
                    losing.lost.set()
                return result

            monkeypatch.setattr(store, method, carried_out)

        def find_again() -> None:
            proxy.cut()
            proxy.go_on()

        losing.lose, losing.find_again = lose, find_again
        yield losing


def test_a_topic_whose_creation_was_not_answered_is_ones_own(losing: Losing) -> None:
    admin = losing.served.admin
    losing.lose(admin, "create_topic")
    created = losing.run(lambda: losing.node.admin.create_topic(TOPIC, SCHEMA)).result()
    assert created == admin.get_topic(TOPIC)


def test_a_topic_that_was_deleted_before_its_creation_was_answered_does_not_come_back(
    losing: Losing,
) -> None:
    admin = losing.served.admin
    losing.lose(admin, "create_topic")

    def delete() -> None:
        admin.delete_topic(TOPIC)
        losing.served.registry.purge(1_000)

    created = losing.run(lambda: losing.node.admin.create_topic(TOPIC, SCHEMA), delete).result()
    assert isinstance(created, Topic)
    assert admin.list_topics(DEFAULT_NAMESPACE) == []


def test_a_namespace_whose_creation_was_not_answered_is_ones_own(losing: Losing) -> None:
    losing.lose(losing.served.admin, "create_namespace")
    created = losing.run(lambda: losing.node.admin.create_namespace(ELSEWHERE)).result()
    assert created == losing.served.admin.get_namespace(ELSEWHERE)


def test_a_group_whose_creation_was_not_answered_is_ones_own(losing: Losing) -> None:
    topic = losing.served.admin.create_topic(TOPIC, SCHEMA)
    group = ShareGroup("group", str(uuid4()), topic, ShareConfig())
    losing.lose(losing.served.groups, "create")
    assert losing.run(lambda: losing.node.groups.create(group)).result() == group
    assert losing.served.groups.of_topic(topic) == [group]


@pytest.mark.parametrize("created_again", [False, True])
def test_a_deletion_of_a_topic_that_was_not_answered_leaves_a_newer_one_alone(
    losing: Losing, created_again: bool
) -> None:
    admin = losing.served.admin
    topic = admin.create_topic(TOPIC, SCHEMA)
    newer: list[Topic] = []
    losing.lose(admin, "delete_topic")

    def create_again() -> None:
        if created_again:
            newer.append(admin.create_topic(TOPIC, SCHEMA))

    assert losing.run(lambda: losing.node.admin.delete_topic(TOPIC), create_again).result() == topic
    assert admin.list_topics(DEFAULT_NAMESPACE) == newer
    if not created_again:
        with pytest.raises(TopicNotFound):
            losing.node.admin.delete_topic(TOPIC)


@pytest.mark.parametrize("created_again", [False, True])
def test_a_deletion_of_a_namespace_that_was_not_answered_leaves_a_newer_one_alone(
    losing: Losing, created_again: bool
) -> None:
    admin = losing.served.admin
    namespace = admin.create_namespace(ELSEWHERE)
    newer: list[NamespaceState] = []
    losing.lose(admin, "delete_namespace")

    def create_again() -> None:
        if created_again:
            newer.append(admin.create_namespace(ELSEWHERE))

    deleted = losing.run(lambda: losing.node.admin.delete_namespace(ELSEWHERE), create_again)
    assert deleted.result() == namespace
    found = admin.list_namespaces()
    assert [each for each in found if each.name == ELSEWHERE] == newer
    if not created_again:
        with pytest.raises(NamespaceNotFound):
            losing.node.admin.delete_namespace(ELSEWHERE)


def test_a_deletion_of_a_group_that_was_not_answered_leaves_a_newer_one_alone(
    losing: Losing,
) -> None:
    topic = losing.served.admin.create_topic(TOPIC, SCHEMA)
    group, newer = (ShareGroup("group", str(uuid4()), topic, ShareConfig()) for _ in range(2))
    losing.served.groups.create(group)
    losing.lose(losing.served.groups, "delete")
    deleted = losing.run(
        lambda: losing.node.groups.delete(topic, "group"),
        lambda: losing.served.groups.create(newer),
    )
    assert deleted.result() == group
    assert losing.served.groups.of_topic(topic) == [newer]
    losing.node.groups.delete(topic, "group")
    with pytest.raises(GroupNotFound):
        losing.node.groups.delete(topic, "group")


def test_a_configuration_that_was_not_answered_is_not_that_of_a_newer_topic(
    losing: Losing,
) -> None:
    admin = losing.served.admin
    admin.create_topic(TOPIC, SCHEMA)
    losing.lose(admin, "alter_topic")

    def create_again() -> None:
        admin.delete_topic(TOPIC)
        admin.create_topic(TOPIC, SCHEMA)

    altered = losing.run(
        lambda: losing.node.admin.alter_topic(TOPIC, TopicConfig(batch_bytes_max=7)), create_again
    )
    assert isinstance(altered.exception(), TopicNotFound)
    assert admin.get_topic(TOPIC).config == TopicConfig()


def test_a_change_whose_outcome_cannot_be_found_out_says_so(
    losing: Losing, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bound_doubt(monkeypatch, 0.0)
    losing.lose(losing.served.admin, "create_topic")
    error = losing.run(lambda: losing.node.admin.create_topic(TOPIC, SCHEMA)).exception()
    assert isinstance(error, Unavailable)
    assert error.facts["in_doubt"] is True


@pytest.mark.parametrize("method", ["get_topic", "list_topics"])
def test_where_the_answer_to_a_look_is_lost_nothing_is_in_doubt(
    losing: Losing, method: str
) -> None:
    """Else a client would not make a call again that was not begun."""
    losing.served.admin.create_topic(TOPIC, SCHEMA)
    losing.lose(losing.served.admin, method)

    def look() -> object:
        if method == "get_topic":
            return losing.node.admin.get_topic(TOPIC)
        return losing.node.admin.list_topics(DEFAULT_NAMESPACE)

    error = losing.run(look).exception()
    assert isinstance(error, Unavailable)
    assert "in_doubt" not in error.facts


class Answering(channel.ServiceChannel):
    """One whose calls are answered by a function."""

    def __init__(self, answer: Callable[[], int]) -> None:
        super().__init__("127.0.0.1:1")
        self._answer = answer

    def call(self, *_: Any, **__: Any) -> Any:
        return self._answer()


def test_a_call_that_took_long_before_its_answer_was_lost_is_asked_for_again_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the node was stopped in the middle of it."""
    _bound_doubt(monkeypatch, 0.2)
    calls = 0

    def answer() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            threading.Event().wait(0.3)
            raise Unavailable("no answer", in_doubt=True)
        return 7

    service = Answering(answer)
    method = service.channel.unary_unary("/never/called")
    assert service.call_repeatedly(method, b"") == 7
    assert calls == 2
    service.close()


def test_a_repetition_that_the_disk_fails_says_nothing_of_the_call_whose_answer_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a push that is in the log would be refused as one that never will be."""
    answers: list[Exception] = [
        Unavailable("no answer", in_doubt=True),
        Internal("the fence of an earlier commit cannot be written"),
        ResourceExhausted("there is no room on the disk"),
    ]

    def answer() -> int:
        if answers:
            raise answers.pop(0)
        return 7

    service = Answering(answer)
    method = service.channel.unary_unary("/never/called")
    assert service.call_repeatedly(method, b"") == 7
    _bound_doubt(monkeypatch, 0.0)
    answers += [Unavailable("no answer", in_doubt=True)]
    with pytest.raises(Unavailable) as caught:
        service.call_repeatedly(method, b"")
    assert caught.value.facts["in_doubt"] is True
    answers += [Internal("the disk failed")]
    with pytest.raises(Internal):
        service.call_repeatedly(method, b"")
    service.close()


def test_a_repetition_that_is_refused_says_nothing_of_the_call_whose_answer_was_lost(
    losing: Losing,
) -> None:
    node, served = losing.node.transactions, losing.served.transactions
    topic = losing.node.admin.create_topic(TOPIC, SCHEMA)
    life = node.join("name", 60_000)
    node.add_partitions("name", life, [(topic, UNPARTITIONED)])
    losing.lose(served, "end")
    ended = losing.run(
        lambda: node.end("name", life, commit=True), lambda: served.join("name", 60_000)
    )
    refused = ended.exception(LONG)
    assert isinstance(refused, PublishFenced)
    assert refused.facts["in_doubt"], "it was committed"
    with pytest.raises(PublishFenced) as again:
        node.end("name", life, commit=True)
    assert "in_doubt" not in again.value.facts


def test_a_repetition_that_does_not_find_what_was_changed_says_so(losing: Losing) -> None:
    topic = losing.served.admin.create_topic(TOPIC, SCHEMA)
    group, moved = (ShareGroup("group", str(uuid4()), topic, ShareConfig()) for _ in range(2))
    losing.served.groups.create(group)
    losing.lose(losing.served.groups, "restart")
    refused = losing.run(
        lambda: losing.node.groups.restart(group, moved.uuid),
        lambda: losing.served.groups.restart(moved, str(uuid4())),
    ).exception(LONG)
    assert isinstance(refused, GroupNotFound)
    assert refused.facts["in_doubt"], "it was moved, and then moved again"


def test_an_old_client_that_names_no_uuids_is_served_as_before(losing: Losing) -> None:
    with grpc.insecure_channel(losing.target) as connected:
        stub = Stub(connected, "AdminService")
        schema = SCHEMA.serialize().to_pybytes()
        create = admin_pb2.CreateTopicRequest(name=str(TOPIC), schema=schema)
        created = stub.CreateTopic(create, timeout=LONG)
        assert losing.served.admin.get_topic(TOPIC).uuid == created.uuid
        with pytest.raises(grpc.RpcError, match="there is a topic"):
            stub.CreateTopic(create, timeout=LONG)
        stub.UpdateTopic(
            admin_pb2.UpdateTopicRequest(name=str(TOPIC), config=created.config), timeout=LONG
        )
        deleted = stub.DeleteTopic(admin_pb2.DeleteTopicRequest(name=str(TOPIC)), timeout=LONG)
        assert deleted.uuid == created.uuid
        namespace = str(ELSEWHERE)
        stub.CreateNamespace(admin_pb2.CreateNamespaceRequest(name=namespace), timeout=LONG)
        stub.DeleteNamespace(admin_pb2.DeleteNamespaceRequest(name=namespace), timeout=LONG)
        with pytest.raises(NamespaceNotFound):
            losing.served.admin.get_namespace(ELSEWHERE)


def _bound_doubt(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Bound how long a call is repeated whose answer was lost."""
    monkeypatch.setattr(channel, "DOUBT_SECONDS_MAX", seconds)
