import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from breakable_proxy import BreakableProxy
from fix_client import EAGER, NewTopic, async_in_soak

import wings_client
from wings_client import Client, Connection, Retry
from wings_core.errors import InvalidArgument, TopicNotFound, Unavailable
from wings_core.times import Deadline
from wings_server.testing import RunningServer

ONCE = Retry(attempts=1)


def test_connecting_waits_for_the_first_call(proxy: BreakableProxy) -> None:
    proxy.stop_listening()
    with wings_client.connect(proxy.endpoint, retry=EAGER) as client:
        proxy.listen_again()
        assert client.topics() is not None


@async_in_soak
def test_nobody_there_is_told_from_a_connection_that_was_lost(
    server: RunningServer, proxy: BreakableProxy, new_topic: NewTopic
) -> None:
    topic = new_topic()

    def stop_listening() -> None:
        server.wait_for_waiting(1)
        proxy.stop_listening()

    with wings_client.connect(proxy.endpoint, retry=ONCE) as client:
        with pytest.raises(Unavailable) as lost:
            # Refused from then on: a connection made in between would be another that is lost.
            during(lambda: client.fetch(topic, offset=0, timeout=60), stop_listening)
        nobody = after_the_connection(client)
    assert lost.value.connection == Connection.LOST
    assert nobody.connection == Connection.UNREACHABLE
    assert nobody.endpoint == proxy.endpoint


def after_the_connection(client: Client) -> Unavailable:
    """Return the error of a call once gRPC makes none over a connection that was lost any more.

    It tells the streams of it first, so a call right after is lost with it now and then.
    """
    deadline = Deadline.after(20)
    while True:
        with pytest.raises(Unavailable) as told:
            client.topics()
        if told.value.connection != Connection.LOST or deadline.passed:
            return told.value


def during(call: Callable[[], object], then: Callable[[], None]) -> None:
    """Make a call that waits, and do something a moment after it began."""
    timer = threading.Timer(0.3, then)
    timer.start()
    try:
        call()
    finally:
        timer.join()


def test_a_call_to_a_server_that_went_silent_ends_in_time(proxy: BreakableProxy) -> None:
    with wings_client.connect(proxy.endpoint, timeout=3.0, retry=EAGER) as client:
        client.topics()
        proxy.stall()
        with pytest.raises(Unavailable) as late:
            client.topics()
        assert late.value.connection == Connection.TIMEOUT
        proxy.go_on()
        assert client.topics() is not None


def test_a_read_goes_on_after_a_lost_connection(shaky: Client, proxy: BreakableProxy) -> None:
    for _ in range(5):
        proxy.cut()
        assert shaky.topics() is not None


@async_in_soak
def test_a_long_poll_goes_on_with_what_is_left_of_its_wait(
    shaky: Client, proxy: BreakableProxy, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()

    def cut_and_push() -> None:
        proxy.cut()
        wings.push(topic, {"n": [7]})

    timer = threading.Timer(0.3, cut_and_push)
    timer.start()
    result = shaky.fetch(topic, offset=0, timeout=30)
    timer.join()
    assert result.table.to_pydict() == {"n": [7]}


@async_in_soak
def test_a_deletion_whose_answer_was_lost_is_not_repeated(
    proxy: BreakableProxy, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    with wings_client.connect(proxy.endpoint, timeout=3.0, retry=EAGER) as client:
        client.topics()
        proxy.stall_answers()
        with pytest.raises(Unavailable) as unknown:
            client.delete_topic(topic)
        assert unknown.value.connection == Connection.TIMEOUT
        with pytest.raises(TopicNotFound):
            wings.topic(topic)


def test_a_closed_client_refuses_calls_and_fails_those_under_way(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    wings.push(topic, pa.table({"n": range(100_000)}), batch_rows=1_000)
    client = wings_client.connect(server.flight)
    reader = client.scan(topic)
    reader.read_next_batch()
    with pytest.raises(Unavailable) as fetching:
        during(lambda: client.fetch(topic, offset=100_000, timeout=60), client.close)
    for call in (client.topics, reader.read_all):
        with pytest.raises(Unavailable) as closed:
            call()
        assert closed.value.connection == Connection.CLOSED
    assert fetching.value.connection == Connection.CLOSED
    client.close()


@async_in_soak
def test_closing_the_client_flushes_producers_and_ends_follows(
    server: RunningServer, wings: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    client = wings_client.connect(server.flight)
    producer = client.producer(topic)
    sent = [producer.send({"n": [index]}) for index in range(50)]
    follow = client.follow(topic)
    assert next(follow).start_offset == 0
    rest: list[int] = []
    follower = threading.Thread(target=lambda: rest.extend(chunk.end_offset for chunk in follow))
    follower.start()
    client.close()
    follower.join(60)
    assert not follower.is_alive()
    assert all(each.done() for each in sent)
    assert wings.fetch(topic, offset=0).num_rows == 50
    server.wait_for_calls(0)


@pytest.mark.parametrize("endpoint", ["nonsense", "grpc://", "http://127.0.0.1:1", ""])
def test_an_endpoint_that_is_none_is_refused_by_name(endpoint: str) -> None:
    with (
        pytest.raises((InvalidArgument, Unavailable), match=r"endpoint|no server"),
        wings_client.connect(endpoint, retry=ONCE) as client,
    ):
        client.topics()


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(InvalidArgument, match="positive"):
        wings_client.connect("grpc://127.0.0.1:1", timeout=0)


@async_in_soak
@pytest.mark.parametrize("pushes", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_many_threads_share_one_client(wings: Client, new_topic: NewTopic, pushes: int) -> None:
    topic = new_topic("key: int64", "n: int64", partition_key="key")
    errors: list[BaseException] = []

    def work(key: int) -> None:
        try:
            for index in range(pushes):
                wings.push(topic, {"key": [key], "n": [index]})
                found = wings.fetch(topic, key, offset=index, timeout=0)
                assert found.table["n"].to_pylist() == [index]
            assert wings.scan(topic, key).read_all()["n"].to_pylist() == list(range(pushes))
        except BaseException as error:  # noqa: BLE001 - raised where the test sees it.
            errors.append(error)

    threads = [threading.Thread(target=work, args=(key,)) for key in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    assert sum(state.next_offset for state in wings.partitions(topic)) == 16 * pushes
