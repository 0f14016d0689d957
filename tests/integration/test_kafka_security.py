"""Tokens and rights of Kafka's clients, unmodified: SASL over TLS, and what a token may see."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import aiokafka  # pyright: ignore[reportMissingTypeStubs]
import confluent_kafka as ck
import httpx
import pyarrow.flight as flight
import pytest
import structlog
from aiokafka.abc import AbstractTokenProvider  # pyright: ignore[reportMissingTypeStubs]
from aiokafka.helpers import create_ssl_context  # pyright: ignore[reportMissingTypeStubs]
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions
from flight_calls import act
from test_kafka import (
    LATER,
    Connection,
    Rdkafka,
    connected,
    expect_polled,
    fetch_request,
    head,
    kafka,
    smallest_request,
    taken,
    text,
)
from token_calls import ROOT, client_of, new_token

import wings_client
from wings_server.kafka.messages import Api
from wings_server.testing import RunningServer, ServerProcess, running_server, server_process

pytestmark = pytest.mark.server(root_token=ROOT, kafka=True)


@pytest.fixture
def root(server: RunningServer) -> Iterator[flight.FlightClient]:
    with client_of(server.flight, ROOT) as client:
        yield client


class Presenting(Rdkafka):
    """Clients of librdkafka that present a token."""

    def __init__(self, address: str, token: str, user: str = "anyone", **config: Any) -> None:
        super().__init__(address)
        self.config |= {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": token,
            **config,
        }

    def topics(self) -> list[str]:
        return sorted(AdminClient(self.config).list_topics(timeout=LATER).topics)


def code_of(call: Callable[[], object]) -> int:
    """Return the code of the error of a call of librdkafka."""
    with pytest.raises(ck.KafkaException) as error:
        call()
    return error.value.args[0].code()


@pytest.fixture(scope="module")
def secured(certs: Path) -> Iterator[ServerProcess]:
    flags = ["--kafka", "127.0.0.1:0", "--tls-cert", f"{certs}/server.pem"]
    flags += ["--tls-key", f"{certs}/server-key.pem"]
    with server_process(flags=flags, environment={"WINGS_ROOT_TOKEN": ROOT}) as server:
        yield server


def _token(config: str) -> tuple[str, float]:
    """Return a token and its expiry."""
    del config
    return ROOT, 4_000_000_000.0


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_librdkafka_presents_a_token_over_tls(
    secured: ServerProcess, certs: Path, new_topic_id: str, mechanism: str
) -> None:
    tls: dict[str, Any] = {"security.protocol": "SASL_SSL", "ssl.ca.location": f"{certs}/ca.pem"}
    rdkafka = Presenting(secured.kafka, ROOT, **tls)
    if mechanism == "OAUTHBEARER":
        del rdkafka.config["sasl.username"], rdkafka.config["sasl.password"]
        rdkafka.config["oauth_cb"] = _token
        rdkafka.config["sasl.mechanism"] = mechanism
    producer = ck.Producer(rdkafka.config)
    producer.produce(new_topic_id, b"one")
    assert producer.flush(LATER) == 0
    with closing(rdkafka.consumer(new_topic_id)) as consumer:
        consumer.subscribe([new_topic_id])
        message = consumer.poll(LATER)
        assert message is not None
        assert message.value() == b"one"


def test_kafka_python_presents_a_token_over_tls(
    secured: ServerProcess, certs: Path, new_topic_id: str
) -> None:
    config: dict[str, Any] = {
        "bootstrap_servers": secured.kafka,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": f"{certs}/ca.pem",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "anyone",
        "sasl_plain_password": ROOT,
    }
    producer = kafka.KafkaProducer(**config)
    assert producer.send(new_topic_id, b"one").get(LATER).offset == 0
    producer.close()
    consumer = kafka.KafkaConsumer(new_topic_id, **config, auto_offset_reset="earliest")
    assert next(consumer).value == b"one"
    consumer.close()


class _Tokens(AbstractTokenProvider):
    async def token(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ROOT


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_aiokafka_presents_a_token_over_tls(
    secured: ServerProcess, certs: Path, new_topic_id: str, mechanism: str
) -> None:
    async def scenario() -> bytes | None:
        config: dict[str, Any] = {
            "bootstrap_servers": secured.kafka,
            "security_protocol": "SASL_SSL",
            "ssl_context": create_ssl_context(cafile=f"{certs}/ca.pem"),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "anyone",
            "sasl_plain_password": ROOT,
            "sasl_oauth_token_provider": _Tokens(),
        }
        async with aiokafka.AIOKafkaProducer(**config) as producer:
            await producer.send_and_wait(new_topic_id, b"one")
        earliest: dict[str, Any] = {**config, "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaConsumer(new_topic_id, **earliest) as consumer:
            return (await consumer.getone()).value

    assert asyncio.run(asyncio.wait_for(scenario(), LATER)) == b"one"


def test_a_token_sees_its_topics_and_no_others(
    server: RunningServer, root: flight.FlightClient, subtests: pytest.Subtests
) -> None:
    everything = Presenting(server.kafka, ROOT)
    for name in ("mine", "theirs", "Mine.Too"):
        everything.create(name)
        everything.produce(name, [b"one"])
    assert everything.topics() == ["Mine.Too", "mine", "theirs"]
    reader = Presenting(server.kafka, new_token(root, "reader", "read=mine*"))
    writer = Presenting(server.kafka, new_token(root, "writer", "write=mine"))
    assert reader.topics() == ["Mine.Too", "mine"]
    assert writer.topics() == ["mine"]
    denied = ck.KafkaError.TOPIC_AUTHORIZATION_FAILED
    for name in ("theirs", "none-of-this-name"):  # Which does not tell whether a topic exists.
        with subtests.test("hidden", name=name):
            listed = AdminClient(reader.config).list_topics(name, timeout=LATER)
            error = listed.topics[name].error
            assert error is not None
            assert error.code() == denied
    with subtests.test("read"):
        assert [each.value() for each in reader.consume("mine", 1)] == [b"one"]
    with subtests.test("write"):
        assert writer.produce("mine", [b"two"]) == [(0, 1)]
    with subtests.test("idempotent write"):
        assert writer.produce("mine", [b"three"], **{"enable.idempotence": True}) == [(0, 2)]
    with subtests.test("no write"):
        errors: list[Any] = []
        producer = ck.Producer(reader.config)
        producer.produce("mine", b"no", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(LATER) == 0
        assert errors[0].code() == denied
    with subtests.test("no read"), closing(writer.consumer()) as consumer:
        consumer.assign([ck.TopicPartition("mine", 0, 0)])
        message = consumer.poll(LATER)
        assert message is not None
        assert (error := message.error()) is not None
        assert error.code() == denied
    with subtests.test("no group"), closing(writer.consumer()) as consumer:
        commit = [ck.TopicPartition("mine", 0, 1)]
        refused = ck.KafkaError.GROUP_AUTHORIZATION_FAILED
        assert code_of(lambda: consumer.commit(offsets=commit, asynchronous=False)) == refused
    with subtests.test("no offsets of others"), closing(reader.consumer("readers")) as consumer:
        at = [ck.TopicPartition("mine", 0, 1), ck.TopicPartition("theirs", 0, 1)]
        assert code_of(lambda: consumer.commit(offsets=at, asynchronous=False)) == denied
        (mine,) = consumer.committed([ck.TopicPartition("mine", 0)], timeout=LATER)
        assert mine.offset == 1
    with subtests.test("no topics"):
        assert code_of(lambda: reader.create("mine-2")) == denied
        admin = AdminClient(reader.config)
        with pytest.raises(ck.KafkaException) as refusal:
            admin.delete_topics(["mine"])["mine"].result(LATER)
        assert refusal.value.args[0].code() == denied


def test_a_token_administers_its_topics_and_groups_and_no_others(
    server: RunningServer, root: flight.FlightClient, subtests: pytest.Subtests
) -> None:
    everything = Presenting(server.kafka, ROOT)
    for name in ("ours-a", "yours-a"):
        everything.create(name)
        everything.produce(name, [b"one"])
        with closing(everything.consumer(name)) as consumer:
            consumer.commit(offsets=[ck.TopicPartition(name, 0, 1)], asynchronous=False)
    reader = Presenting(server.kafka, new_token(root, "ours-reader", "read=ours-*"))
    admin = AdminClient(reader.config)
    denied = ck.KafkaError.TOPIC_AUTHORIZATION_FAILED

    def only(futures: Any) -> Any:
        (future,) = futures.values()
        return future.result(LATER)

    def described(topic: str) -> Any:
        return only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))

    with subtests.test("configuration"):
        assert "retention.ms" in described("ours-a")
        assert code_of(lambda: described("yours-a")) == denied
    with subtests.test("no changes"):
        more = [NewPartitions("ours-a", 5)]
        assert code_of(lambda: only(admin.create_partitions(more))) == denied
        end = [ck.TopicPartition("ours-a", 0, -1)]
        assert code_of(lambda: only(admin.delete_records(end))) == denied
    with subtests.test("groups"):
        listed = {each.group_id for each in admin.list_consumer_groups().result(LATER).valid}
        assert listed == {"ours-a"}
        assert only(admin.describe_consumer_groups(["yours-a"])).state.name == "DEAD"
    with subtests.test("no group of others"):
        refused = ck.KafkaError.GROUP_ID_NOT_FOUND
        assert code_of(lambda: only(admin.delete_consumer_groups(["yours-a"]))) == refused
    new: dict[str, Any] = {"group.protocol": "consumer"}
    with subtests.test("no member of others"), closing(reader.consumer("both", **new)) as consumer:
        consumer.subscribe(["yours-a"])
        message = consumer.poll(LATER)
        assert message is not None
        assert (error := message.error()) is not None
        assert error.code() == denied
    with subtests.test("by pattern"), closing(reader.consumer("pattern", **new)) as consumer:
        consumer.subscribe(["^(ours|yours)-.*"])
        message = consumer.poll(LATER)
        assert message is not None
        assert message.topic() == "ours-a"
        assert {each.topic for each in consumer.assignment()} == {"ours-a"}
    with subtests.test("own group"):
        only(admin.delete_consumer_groups(["ours-a"]))


def test_a_user_with_a_slash_picks_a_namespace(
    server: RunningServer, root: flight.FlightClient, subtests: pytest.Subtests
) -> None:
    act(root, "create-namespace", namespace="tenants/acme/namespaces/shop")
    inside = Presenting(server.kafka, ROOT, "acme/shop")
    inside.create("only-in-shop")
    inside.produce("only-in-shop", [b"one"])
    assert inside.topics() == ["only-in-shop"]
    assert "only-in-shop" not in Presenting(server.kafka, ROOT).topics()
    name = "tenants/acme/namespaces/shop/topics/only-in-shop"
    with wings_client.connect(server.flight, token=ROOT) as client:
        assert client.scan(name, partition=0).read_all().num_rows == 1
    for user in ("acme/none", "acme/none/of", "acme/A"):
        with subtests.test(user=user):
            assert refused(server.kafka, ROOT, user)
    with subtests.test("no rights there"):
        token = new_token(root, "outside", "read=mine")
        assert refused(server.kafka, token, "acme/shop")
        assert not refused(server.kafka, token, "acme")


def test_a_group_of_one_namespace_is_none_of_another(
    server: RunningServer, root: flight.FlightClient, new_topic_id: str
) -> None:
    act(root, "create-namespace", namespace="tenants/acme/namespaces/back")
    ours, theirs = (Presenting(server.kafka, ROOT, user) for user in ("anyone", "acme/back"))
    for clients in (ours, theirs):
        clients.create(new_topic_id)
        clients.produce(new_topic_id, [b"one"])
    with (
        closing(theirs.consumer(new_topic_id, **{"group.protocol": "consumer"})) as member,
        closing(ours.consumer(new_topic_id)) as classic,
    ):
        member.subscribe([new_topic_id])
        taken(member, 1)
        classic.subscribe([new_topic_id])
        (message,) = taken(classic, 1)
        classic.commit(message=message, asynchronous=False)
        member.commit(asynchronous=False)
    for clients in (ours, theirs):
        admin = AdminClient(clients.config)  # It must outlive its futures.
        groups = admin.list_consumer_groups().result(LATER).valid
        assert [each.group_id for each in groups].count(new_topic_id) == 1
    for consumer in (f"kafka:{new_topic_id}", f"kafka/acme/back:{new_topic_id}"):
        (committed,) = act(root, "get-offsets", consumer=consumer)["offsets"]
        assert committed["offset"] == 1


def test_refused_tokens_are_logged_with_the_address_of_the_client(server: RunningServer) -> None:
    with structlog.testing.capture_logs() as logged:
        assert refused(server.kafka, "wrong", "anyone")
        assert httpx.get(f"{server.http}/v1/health").status_code == 401
    found = [(each["action"], each["client"]) for each in logged if each["event"] == "refused"]
    assert found == [("kafka", "127.0.0.1"), ("GET /v1/health", "127.0.0.1")]


def test_a_connection_without_a_request_is_no_news(server: RunningServer) -> None:
    with structlog.testing.capture_logs() as logged, connected(server.kafka) as scan:
        scan.send_raw(b"GET / HTTP/1.1\r\n\r\n")
        assert scan.receive() is None
    (closed,) = (each for each in logged if each["event"] == "closed a connection")
    assert closed["log_level"] == "debug"


def refused(address: str, token: str, user: str) -> bool:
    """Return whether SASL refuses a token; with the newest forms of its requests."""
    with connected(address) as connection:
        return not presents(connection, token, user)


def presents(connection: Connection, token: str, user: str = "anyone") -> bool:
    """Return whether SASL admits a token; if not, the connection is closed."""
    connection.send(head(Api.SASL_HANDSHAKE, 1) + text("PLAIN"))
    assert connection.receive() is not None
    message = f"\0{user}\0{token}".encode()
    connection.send(head(Api.SASL_AUTHENTICATE, 0) + struct.pack(">i", len(message)) + message)
    answer = connection.receive()
    assert answer is not None
    (code,) = struct.unpack_from(">h", answer, 4)
    if code == 0:
        return True
    assert code == ck.KafkaError.SASL_AUTHENTICATION_FAILED
    assert connection.receive() is None
    return False


def test_a_connection_stays_with_its_principal_and_its_namespace(
    server: RunningServer, root: flight.FlightClient, subtests: pytest.Subtests
) -> None:
    act(root, "create-namespace", namespace="tenants/acme/namespaces/stay")
    token = new_token(root, "stays", "read=*")
    again = {"nobody": ("no token", "anyone"), "another": (ROOT, "anyone")}
    again["another namespace"] = (token, "acme/stay")
    for name, presented in again.items():
        with subtests.test(name), connected(server.kafka) as connection:
            assert presents(connection, token)
            assert presents(connection, token, "the same")
            assert not presents(connection, *presented)


def presents_plainly(connection: Connection, message: bytes) -> bytes | None:
    """Present a token as the first clients did, without the heads of later requests."""
    connection.send(head(Api.SASL_HANDSHAKE, 0) + text("PLAIN"))
    answer = connection.receive()
    assert answer is not None
    assert struct.unpack_from(">ih", answer) == (7, 0)
    connection.send(message)
    return connection.receive()


def test_without_a_valid_token_nothing_is_answered(
    server: RunningServer, new_topic_id: str, subtests: pytest.Subtests
) -> None:
    address = server.kafka
    metadata = head(Api.METADATA, 1) + struct.pack(">i", 0)
    with subtests.test("no token"), connected(address) as connection:
        connection.send(head(Api.API_VERSIONS, 0))
        assert connection.receive() is not None
        connection.send(metadata)
        assert connection.receive() is None
    with subtests.test("large frames"), connected(address) as connection:
        connection.send_raw(struct.pack(">i", 8 * 1024 + 1))
        assert connection.receive() is None
    with subtests.test("an unknown mechanism"), connected(address) as connection:
        connection.send(head(Api.SASL_HANDSHAKE, 1) + text("GSSAPI"))
        answer = connection.receive()
        assert answer is not None
        assert struct.unpack_from(">h", answer, 4) == (33,)
        assert b"PLAIN" in answer
        connection.send(head(Api.SASL_AUTHENTICATE, 0) + struct.pack(">i", 0))
        answer = connection.receive()
        assert answer is not None
        assert struct.unpack_from(">h", answer, 4) == (34,)
        connection.send(metadata)
        assert connection.receive() is None
    for message in ("bad token", f"\0anyone\0{ROOT}x", f"other\0anyone\0{ROOT}", f"{ROOT}"):
        with subtests.test(message=message), connected(address) as connection:
            assert presents_plainly(connection, message.encode()) is None
    with subtests.test("an old client"), connected(address) as connection:
        assert presents_plainly(connection, f"\0anyone\0{ROOT}".encode()) == b""
        connection.send(metadata)
        assert connection.receive() is not None


def test_a_revoked_token_ends_its_connection_and_its_waits(
    server: RunningServer, root: flight.FlightClient, new_topic_id: str
) -> None:
    Presenting(server.kafka, ROOT).create(new_topic_id)
    token = new_token(root, "revoked", "read=*")
    joins = {"group_id": new_topic_id, "session_timeout": 1_800_000, "protocol_type": "consumer"}
    joins |= {"rebalance_timeout": 1_800_000, "protocols": [{"name": "range", "metadata": b""}]}
    with ExitStack() as open_connections:
        member, joining, waiting, idle = (
            open_connections.enter_context(connected(server.kafka)) for _ in range(4)
        )
        for connection in (member, joining, waiting, idle):
            presented = ROOT if connection is member else token
            assert presents_plainly(connection, f"\0\0{presented}".encode()) == b""
        assert member.ask(Api.JOIN_GROUP, 2, **joins).error_code.value == 0
        joining.send(smallest_request(Api.JOIN_GROUP, 2, **joins))  # Waits for the other.
        waiting.send(fetch_request(new_topic_id, wait_ms=250_000))
        server.wait_for_waiting(1)
        act(root, "token-revoke", name="revoked")
        for connection in (waiting, idle, joining):
            assert connection.receive() is None
        assert member.ask(Api.METADATA, 4).topics


def test_the_first_token_ends_what_needed_none(new_topic_id: str) -> None:
    with running_server(kafka=True) as server, connected(server.kafka) as connection:
        rdkafka = Presenting(server.kafka, "any text")  # Without tokens, any is accepted.
        rdkafka.create(new_topic_id)
        request = fetch_request(new_topic_id, wait_ms=0)
        connection.send(request)
        assert connection.receive() is not None
        with server.client() as client:
            new_token(client, "first", "admin=*")
        connection.send(request)
        assert connection.receive() is None


def test_quotas_of_a_token_hold(
    server: RunningServer,
    root: flight.FlightClient,
    new_topic_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Presenting(server.kafka, ROOT).create(new_topic_id)
    token = new_token(root, new_topic_id, f"admin={new_topic_id}*", quotas={"topics": 1})
    team = Presenting(server.kafka, token)
    assert code_of(lambda: team.create(f"{new_topic_id}-2")) == ck.KafkaError.POLICY_VIOLATION
    token = new_token(root, f"{new_topic_id}-2", "read=*", quotas={"calls": 1})
    first, second = connected(server.kafka), connected(server.kafka)
    with second:
        with first:
            for connection in (first, second):
                assert presents_plainly(connection, f"\0\0{token}".encode()) == b""
            first.send(fetch_request(new_topic_id, wait_ms=250_000))
            server.wait_for_waiting(1)
            second.send(fetch_request(new_topic_id, wait_ms=0))
            second.settimeout(0.3)
            with pytest.raises(TimeoutError):
                second.receive()
            second.settimeout(LATER)
        answer = second.receive() or b""
        (throttled_ms,) = struct.unpack_from(">i", answer, 4)
        assert throttled_ms > 0
        second.send(fetch_request(new_topic_id, wait_ms=250_000))
        server.wait_for_waiting(1)
        monkeypatch.setattr("wings_server.kafka.server.QUOTA_SECONDS_MAX", 0.1)
        with connected(server.kafka) as third:
            assert presents_plainly(third, f"\0\0{token}".encode()) == b""
            third.send(fetch_request(new_topic_id, wait_ms=0))
            assert third.receive() is None
    server.wait_for_waiting(0)


def test_the_members_of_a_classic_group_are_those_who_may_read_its_topics(
    server: RunningServer, root: flight.FlightClient, new_topic_id: str, subtests: pytest.Subtests
) -> None:
    group, theirs, mine = (f"{new_topic_id}-{name}" for name in ("group", "theirs", "mine"))
    everything = Presenting(server.kafka, ROOT)
    for name in (theirs, mine):
        everything.create(name)
    token = new_token(root, new_topic_id, f"read={mine}")
    config = {"group.instance.id": "pod-1", "session.timeout.ms": 45_000}
    refused = ck.KafkaError.GROUP_AUTHORIZATION_FAILED
    with (
        closing(everything.consumer(group, **config)) as member,
        connected(server.kafka) as connection,
    ):
        member.subscribe([theirs])
        expect_polled(lambda: bool(member.assignment()), member)
        assert presents(connection, token)

        def joined(group: str, topic: str) -> int:
            kind = {"session_timeout": 6_000, "protocol_type": "consumer"}
            metadata = struct.pack(">hi", 0, 1) + text(topic) + bytes(4)
            protocols = [{"name": "range", "metadata": metadata}]
            named = {"group_id": group, "protocols": protocols, "rebalance_timeout": 6_000}
            return connection.ask(Api.JOIN_GROUP, 3, **named, **kind).error_code.value

        with subtests.test("described"):
            (described,) = connection.ask(Api.DESCRIBE_GROUPS, 5, groups=[group]).groups
            assert (described.error_code.value, described.members) == (refused, ())
        with subtests.test("listed"):
            listed = connection.ask(Api.LIST_GROUPS, 4).groups
            assert group not in {each.group_id for each in listed}
        with subtests.test("removed"):
            named = [{"member_id": "", "group_instance_id": "pod-1"}]
            (left,) = connection.ask(Api.LEAVE_GROUP, 5, group_id=group, members=named).members
            assert left.error_code.value == refused
        with subtests.test("joined"):
            assert joined(group, mine) == refused
            assert joined(f"{group}-2", theirs) == refused
            assert joined(f"{group}-2", mine) == 0
            (described,) = connection.ask(Api.DESCRIBE_GROUPS, 5, groups=[f"{group}-2"]).groups
            assert len(described.members) == 1
            listed = connection.ask(Api.LIST_GROUPS, 4).groups
            assert f"{group}-2" in {each.group_id for each in listed}
        with subtests.test("undisturbed"):
            admin = AdminClient(everything.config)
            (described,) = admin.describe_consumer_groups([group]).values()
            assert len(described.result(LATER).members) == 1
