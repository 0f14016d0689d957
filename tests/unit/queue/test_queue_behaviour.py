"""How every `Queue` hands out, hides, extends and deletes messages."""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from fix_calls import Calls
from fix_clouds import BUILD_SECONDS

import wings_client
from wings_core.errors import (
    GroupNotFound,
    InvalidArgument,
    InvalidRecordState,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    WingsError,
)
from wings_core.queue.azure import AzureQueue
from wings_core.queue.interfaces import Queue
from wings_core.queue.notifications import DedupKey, MessageKind, files_of
from wings_core.queue.pubsub import PubSubQueue
from wings_core.queue.sqlite import DirectoryQueue, SqliteQueue
from wings_core.queue.sqs import SqsQueue
from wings_core.share.model import MonotonicClock
from wings_spark.connection import ServerAccess
from wings_spark.ingest.share_queue import ShareQueue

if TYPE_CHECKING:
    from fix_aws import Aws
    from fix_clouds import Azure, Google

    from wings_server.testing import RunningServer

LONG = 30.0

SHARE_HELD = 20.0
"""For how long the messages of a share group are held."""


@dataclass
class Clock:
    time: float = field(default_factory=time.time)

    def __call__(self) -> float:
        return self.time


@dataclass
class QueueUnderTest:
    """One implementation, and how a message gets into it."""

    queue: Queue
    add: Callable[[str], str]
    """Adds a message by a name of its own; returns its body, or what its body begins with."""
    pass_time: Callable[[float], None]
    strict: bool = True
    """Whether a receipt is of no use after its deadline."""
    held: float | None = None
    """For how long messages are held, whatever is asked for; None: as is asked for."""

    def expire(self) -> None:
        """Let the time pass for which a message was asked for one second."""
        self.pass_time((self.held or 1.0) + 0.5)


def share_queue(endpoint: str, topic: str | None = None) -> ShareQueue:
    """A share group of a topic of its own."""
    topic = topic or f"q-{uuid4().hex}"
    with wings_client.connect(endpoint) as client:
        client.create_topic(topic, {"body": "string", "extra": "int64"})
        config = {"lock_duration_ms": round(SHARE_HELD * 1_000), "start": "earliest"}
        client.create_share_group("files", topic, config)
    return ShareQueue(ServerAccess(endpoint), topic, "files", "body")


def cloud_queue(request: pytest.FixtureRequest) -> Queue:
    """An empty queue of a cloud's."""
    name = f"q-{uuid4().hex}"
    if request.param == "azure":
        azure: Azure = request.getfixturevalue("azure")
        return AzureQueue(azure.create_queue(name))
    if request.param == "pubsub":
        google: Google = request.getfixturevalue("google")
        return PubSubQueue(google.create_subscription(name)[1])
    aws: Aws = request.getfixturevalue("aws")
    return SqsQueue(aws.create_queue(name), endpoint=aws.endpoint)


OF_GOOGLE = pytest.mark.timeout(BUILD_SECONDS)


@pytest.fixture(
    params=[
        "sqlite",
        "directory",
        "sqs",
        "azure",
        pytest.param("pubsub", marks=OF_GOOGLE),
        "share",
    ]
)
def tested(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[QueueUnderTest]:
    clock = Clock()

    def advance(seconds: float) -> None:
        clock.time += seconds

    if request.param == "sqlite":
        queue = SqliteQueue(tmp_path / "queue.sqlite", clock=clock)

        def send(name: str) -> str:
            queue.send([name])
            return name

        under_test = QueueUnderTest(queue, send, advance)
    elif request.param == "directory":
        (tmp_path / "files").mkdir()
        watched = DirectoryQueue(tmp_path / "files", clock=clock, scan_seconds=0)

        def put(name: str) -> str:
            (tmp_path / f"{name}.tmp").write_text(name)
            (tmp_path / f"{name}.tmp").rename(tmp_path / "files" / name)
            return json.dumps({"uri": str(tmp_path / "files" / name)})[:-1]

        under_test = QueueUnderTest(watched, put, advance)
    elif request.param == "share":
        server: RunningServer = request.getfixturevalue("server")
        share = share_queue(server.flight)
        ahead = [0.0]
        now = staticmethod(lambda: time.monotonic() + ahead[0])
        request.getfixturevalue("monkeypatch").setattr(MonotonicClock, "now", now)

        def set_ahead(seconds: float) -> None:
            ahead[0] += seconds

        def send_share(name: str) -> str:
            share.send([name])
            return name

        under_test = QueueUnderTest(share, send_share, set_ahead, strict=False, held=SHARE_HELD)
    else:
        distant = cloud_queue(request)

        def send_to_cloud(name: str) -> str:
            distant.send([name])
            return name

        under_test = QueueUnderTest(distant, send_to_cloud, time.sleep, strict=False)
    yield under_test
    under_test.queue.close()


def test_an_empty_queue_has_nothing(tested: QueueUnderTest) -> None:
    assert tested.queue.receive(10, LONG) == []
    assert not tested.queue.pending()  # None: the queue does not tell.


def test_a_message_is_delivered_and_hidden(tested: QueueUnderTest) -> None:
    before = time.time()
    body = tested.add("one")
    (message,) = tested.queue.receive(10, LONG)
    assert message.body.startswith(body)
    assert message.deliveries == 1
    assert message.deadline >= before + (tested.held or LONG) - 1
    assert tested.queue.receive(10, LONG) == []
    assert not tested.queue.pending()  # None: the queue does not tell.


def test_no_more_are_delivered_than_are_asked_for(tested: QueueUnderTest) -> None:
    for number in range(14):
        tested.add(f"message-{number:02}")
    first = tested.queue.receive(12, LONG)
    assert 1 <= len(first) <= 12
    rest = tested.queue.receive(14, LONG)
    assert len({message.id for message in [*first, *rest]}) == 14


def test_an_acknowledged_message_never_comes_again(tested: QueueUnderTest) -> None:
    tested.add("one")
    (message,) = tested.queue.receive(10, 1.0)
    tested.queue.acknowledge([message.receipt])
    tested.expire()
    assert tested.queue.receive(10, LONG) == []
    tested.queue.acknowledge([message.receipt])  # Again, as after a crash.


def test_a_message_whose_deadline_passes_comes_again_under_another_receipt(
    tested: QueueUnderTest,
) -> None:
    tested.add("one")
    (first,) = tested.queue.receive(10, 1.0)
    tested.expire()
    (second,) = tested.queue.receive(10, LONG)
    assert second.id == first.id
    assert second.receipt != first.receipt
    assert second.deliveries == 2
    if tested.strict:
        assert tested.queue.extend(first.receipt, LONG) is None
        tested.queue.acknowledge([first.receipt])
        tested.pass_time(LONG + 1)
        assert len(tested.queue.receive(10, LONG)) == 1


def test_an_extended_message_stays_hidden(tested: QueueUnderTest) -> None:
    tested.add("one")
    (message,) = tested.queue.receive(10, 5.0)  # It is extended before, also where all stalls.
    deadline = tested.queue.extend(message.receipt, LONG)
    assert deadline is not None
    assert deadline > message.deadline
    tested.pass_time(5.5)
    assert tested.queue.receive(10, LONG) == []
    tested.queue.acknowledge([message.receipt])


def test_an_unknown_receipt_cannot_be_extended(tested: QueueUnderTest) -> None:
    assert tested.queue.extend("nonsense", LONG) is None
    tested.queue.acknowledge([])


def test_a_wait_ends_with_the_first_message(tested: QueueUnderTest) -> None:
    timer = threading.Timer(0.2, tested.add, ["late"])
    timer.start()
    (message,) = tested.queue.receive(10, LONG, wait_seconds=20)
    assert "late" in message.body
    timer.join()


def test_a_message_that_is_sent_again_comes_again(tested: QueueUnderTest) -> None:
    tested.add("one")
    (message,) = tested.queue.receive(10, LONG)
    tested.queue.acknowledge([message.receipt])
    tested.queue.send([message.body])
    (again,) = tested.queue.receive(10, LONG)
    assert again.body == message.body
    assert again.id != message.id


def test_two_receivers_share_the_messages(tested: QueueUnderTest) -> None:
    for number in range(20):
        tested.add(f"message-{number:02}")
    got: list[str] = []

    def take() -> None:
        while found := tested.queue.receive(3, LONG):
            got.extend(message.id for message in found)

    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(got)) == 20
    # SQS delivers at least once, and moto looks at a message and marks it without a lock.
    assert len(got) == 20 or isinstance(tested.queue, SqsQueue)


# Of one kind alone.


def test_an_empty_queue_is_not_asked_over_and_over(tmp_path: Path, calls: Calls) -> None:
    queue = SqliteQueue(tmp_path / "queue.sqlite")
    looks = calls.heard(SqliteQueue, "_take")
    assert queue.receive(10, LONG, wait_seconds=1.0) == []
    assert len(looks) < 12
    queue.close()


def test_a_sqlite_queue_is_kept_and_shared(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    one, other = SqliteQueue(path), SqliteQueue(path)
    one.send(["a", "b"])
    (message, _) = other.receive(10, LONG)
    assert one.receive(10, LONG) == []
    other.acknowledge([message.receipt])
    assert one.remaining == 1
    one.close()
    with pytest.raises(Unavailable):
        one.receive(1, LONG)
    other.close()


def first_id(queue: Queue) -> str:
    """Send a message and return its id."""
    queue.send(["first"])
    (message,) = queue.receive(1, LONG, wait_seconds=20)
    return message.id


def test_no_message_of_a_sqlite_queue_made_anew_is_taken_for_one_of_the_old(
    tmp_path: Path,
) -> None:
    ids: set[str] = set()
    for _ in range(2):
        queue = SqliteQueue(tmp_path / "queue.sqlite")
        ids.add(first_id(queue))
        queue.close()
        for path in list(tmp_path.iterdir()):
            path.unlink()
    assert len(ids) == 2


def test_messages_of_an_older_sqlite_queue_keep_their_ids(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite"
    SqliteQueue(path).close()
    older = sqlite3.connect(path)
    older.execute("DROP TABLE identity")
    older.close()
    for number in ("1", "2"):
        queue = SqliteQueue(path)
        assert first_id(queue) == number
        queue.close()


def test_no_message_of_a_topic_made_anew_is_taken_for_one_of_the_old(
    server: "RunningServer",
) -> None:
    queue = share_queue(server.flight)
    topic: str = vars(queue)["_topic"]
    old = first_id(queue)
    queue.close()
    with wings_client.connect(server.flight) as client:
        client.delete_topic(topic)
    anew = share_queue(server.flight, topic)
    assert first_id(anew) != old
    anew.close()


def test_what_is_no_queue_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(Unavailable, match="text: it failed: file is not a database"):
        SqliteQueue(tmp_path / "text")
    with pytest.raises(InvalidArgument, match="no directory"):
        DirectoryQueue(tmp_path / "nowhere")


def test_a_directory_tells_of_names_that_are_not_utf_8_and_of_their_neighbours(
    tmp_path: Path,
) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xe9.jsonl")).write_text("{}")
    (tmp_path / "b.jsonl").write_text("{}")
    queue = DirectoryQueue(tmp_path, scan_seconds=0)
    found = queue.receive(10, LONG)
    notifications = [
        notification
        for each in found
        for notification in files_of(each.body, each.id, MessageKind.URIS, DedupKey.URI)
    ]
    assert [notification.problem is None for notification in notifications] == [False, True]
    queue.acknowledge([each.receipt for each in found])
    assert queue.receive(10, LONG) == []
    queue.close()


def test_a_directory_that_was_away_for_a_while_does_not_tell_of_its_files_again(
    tmp_path: Path,
) -> None:
    directory, away = tmp_path / "in", tmp_path / "away"
    directory.mkdir()
    (directory / "a.jsonl").write_text("{}")
    queue = DirectoryQueue(directory, tmp_path / "queue.sqlite", scan_seconds=0)
    queue.acknowledge([each.receipt for each in queue.receive(10, LONG)])
    directory.rename(away)
    with pytest.raises(Unavailable, match="cannot be scanned"):
        queue.receive(10, LONG)
    away.rename(directory)
    assert queue.receive(10, LONG) == []
    queue.close()


def test_a_directory_tells_of_files_that_are_whole(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "_hidden").mkdir()
    for name in ("a.jsonl", "below/b.jsonl", ".c", "_d", "e.tmp", "f.part", "_hidden/g"):
        (tmp_path / name).write_text(name)
    queue = DirectoryQueue(tmp_path, scan_seconds=0)
    found = [json.loads(message.body) for message in queue.receive(10, LONG)]
    assert sorted(each["uri"] for each in found) == [
        str(tmp_path / "a.jsonl"),
        str(tmp_path / "below" / "b.jsonl"),
    ]
    assert {each["size"] for each in found} == {7, 13}
    queue.close()


def test_a_file_that_is_overwritten_is_a_new_message_and_an_old_one_is_none_after_a_restart(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("one")
    queue = DirectoryQueue(tmp_path, scan_seconds=0)
    (first,) = queue.receive(10, LONG)
    queue.acknowledge([first.receipt])
    queue.close()
    queue = DirectoryQueue(tmp_path, scan_seconds=0)
    assert queue.receive(10, LONG) == []
    (tmp_path / "new.tmp").write_text("another")
    (tmp_path / "new.tmp").rename(path)
    (second,) = queue.receive(10, LONG)
    assert json.loads(second.body)["version"] != json.loads(first.body)["version"]
    queue.acknowledge([second.receipt])
    path.unlink()
    assert queue.receive(10, LONG) == []
    queue.close()


def test_there_has_to_be_a_queue_of_sqs(aws: "Aws") -> None:
    url = aws.create_queue("there").replace("there", "not-there")
    queue = SqsQueue(url, endpoint=aws.endpoint)
    with pytest.raises(InvalidArgument, match="no queue"):
        queue.receive(1, LONG)
    queue.close()
    unreachable = SqsQueue("http://127.0.0.1:1/1/q", endpoint="http://127.0.0.1:1")
    with pytest.raises(Unavailable):
        unreachable.receive(1, LONG)
    unreachable.close()


def test_there_has_to_be_a_queue_of_azure_and_a_key_to_it(
    azure: "Azure", monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = AzureQueue(f"{azure.queues}/not-there")
    calls: list[Callable[[], object]] = [
        lambda: missing.receive(1, LONG),
        lambda: missing.send(["body"]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="no queue"):
            call()
    missing.close()
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=")
    refused = AzureQueue(f"{azure.queues}/not-there")
    with pytest.raises((Unauthenticated, PermissionDenied)):
        refused.receive(1, LONG)
    refused.close()
    with pytest.raises(InvalidArgument, match="no URL of a queue"):
        AzureQueue("https://acme.queue.core.windows.net")


def test_a_message_of_azure_is_extended_and_deleted_by_the_receipt_of_its_delivery(
    azure: "Azure", tmp_path: Path
) -> None:
    url = azure.create_queue(f"q-{uuid4().hex}")
    receipts = tmp_path / "receipts.sqlite"
    queue, other = (AzureQueue(url, receipts=receipts) for _ in range(2))
    stranger = AzureQueue(url)
    queue.send(["one", "two"])
    one, two = queue.receive(2, LONG)
    for message in (one, two):
        assert queue.extend(message.receipt, LONG) is not None
        assert other.extend(message.receipt, 1.0) is not None
        assert stranger.extend(message.receipt, LONG) is None, "it knows an older receipt"
    queue.acknowledge([one.receipt])
    stranger.acknowledge([two.receipt])
    time.sleep(1.5)
    (again,) = other.receive(2, LONG)
    assert (again.id, again.deliveries) == (two.id, 2)
    assert queue.extend(two.receipt, LONG) is None
    queue.acknowledge([two.receipt])
    assert other.extend(again.receipt, LONG) is not None
    for each in (queue, other, stranger):
        each.close()


@OF_GOOGLE
def test_there_has_to_be_a_subscription(google: "Google") -> None:
    del google
    queue = PubSubQueue("projects/p/subscriptions/not-there")
    calls: list[Callable[[], object]] = [
        lambda: queue.receive(1, LONG),
        lambda: queue.receive(1, LONG, wait_seconds=1),
        lambda: queue.send(["body"]),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="no subscription"):
            call()
    queue.close()


@OF_GOOGLE
def test_a_message_of_pubsub_that_was_not_extended_in_time_is_lost(google: "Google") -> None:
    clock = Clock()
    queue = PubSubQueue(google.create_subscription(f"q-{uuid4().hex}")[1], clock=clock)
    queue.send(["one", "other"])
    first, second = queue.receive(10, LONG, wait_seconds=10)
    clock.time += LONG - 1
    assert queue.extend(first.receipt, 2 * LONG) == clock.time + 2 * LONG
    clock.time += 2
    assert queue.extend(first.receipt, LONG) is not None
    assert queue.extend(second.receipt, LONG) is None
    assert queue.visibility_seconds(3_600) == 600, "no message is hidden for longer at a time"
    queue.close()


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "InvalidClientTokenId", Unauthenticated),
        (400, "ExpiredToken", Unauthenticated),
        (403, "AccessDenied", PermissionDenied),
        (400, "InvalidParameterValue", InvalidArgument),
        (404, "ReceiptHandleIsInvalid", InvalidRecordState),
        (400, "SomethingElse", Unavailable),
    ],
)
def test_what_sqs_refuses_with_is_an_error_of_its_kind(
    aws: "Aws", status: int, code: str, error: type[WingsError]
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.dumps({"__type": code, "message": "no"}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - As it is called.
            del format, args

    del aws  # For its credentials.
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        queue = SqsQueue(f"{endpoint}/1/q", endpoint=endpoint)
        calls: list[Callable[[], object]] = [
            lambda: queue.receive(1, LONG),
            lambda: queue.acknowledge(["receipt"]),
            lambda: queue.send(["body"]),
            queue.pending,
        ]
        try:
            for call in calls:
                with pytest.raises(error, match="no") as raised:
                    call()
                assert type(raised.value) is error
            if error in (InvalidArgument, InvalidRecordState):
                assert queue.extend("receipt", LONG) is None
            else:
                with pytest.raises(error):
                    queue.extend("receipt", LONG)
        finally:
            queue.close()
            server.shutdown()
            thread.join()


def test_a_share_group_has_to_be_there_and_its_topic_to_have_the_column(
    server: "RunningServer",
) -> None:
    queue = share_queue(server.flight)
    topic: str = vars(queue)["_topic"]
    with pytest.raises(GroupNotFound):
        ShareQueue(ServerAccess(server.flight), topic, "others", "body")
    with wings_client.connect(server.flight) as client:
        client.create_share_group("once", topic, {"delivery_limit": 1})
    with pytest.raises(InvalidArgument, match="delivery_limit of 1"):
        ShareQueue(ServerAccess(server.flight), topic, "once", "body")
    for column in ("nowhere", "extra"):
        with pytest.raises(InvalidArgument, match="string column"):
            ShareQueue(ServerAccess(server.flight), topic, "files", column)
    queue.close()


def test_for_how_long_messages_are_hidden_is_what_the_group_says_now(
    server: "RunningServer",
) -> None:
    queue = share_queue(server.flight)
    topic: str = vars(queue)["_topic"]
    assert queue.visibility_seconds(LONG) == SHARE_HELD
    queue.send(["one"])
    with wings_client.connect(server.flight) as client:
        client.alter_share_group("files", topic, {"lock_duration_ms": 60_000})
        (message,) = queue.receive(1, LONG, wait_seconds=20)
        assert message.deadline > time.time() + LONG
        assert queue.visibility_seconds(LONG) == 60
        client.alter_share_group("files", topic, {"lock_duration_ms": 2_000})
        queue.pending()
        assert queue.visibility_seconds(LONG) == 2
        extended = queue.extend(message.receipt, LONG)
        assert extended is not None
        assert extended <= time.time() + 2
    queue.close()


def test_what_one_process_took_of_a_share_group_another_extends_and_acknowledges(
    server: "RunningServer",
) -> None:
    queue = share_queue(server.flight)
    topic: str = vars(queue)["_topic"]
    other = ShareQueue(ServerAccess(server.flight), topic, "files", "body")
    queue.send(["one", "two"])
    messages = queue.receive(10, LONG, wait_seconds=20)
    assert [message.body for message in messages] == ["one", "two"]
    assert other.extend(messages[0].receipt, LONG) is not None
    other.acknowledge(["lost", *(message.receipt for message in messages)])
    with wings_client.connect(server.flight) as client:
        (state,) = client.share_group("files", topic).partitions
    assert (state.lag, state.in_flight) == (0, 0)
    queue.close()
    other.close()
