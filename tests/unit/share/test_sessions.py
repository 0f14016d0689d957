"""Sessions with a replica of holds: messages one after another on one call."""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, cast
from unittest.mock import Mock

import grpc
import pytest
from fix_calls import Calls

from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.model import Lease
from wings_core.partitions import UNPARTITIONED
from wings_core.security.tokens import PeerAccess
from wings_core.share.model import OffsetRange, ShareKey
from wings_core.share.remote.link import Asked, HoldSession, RemoteLink, SharedLink
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import Answer, ForgetRequest, HoldRequest, Request
from wings_core.share.replica.sqlite_store import SqliteHoldStore
from wings_server.holds.handlers import hold_service
from wings_server.metadata.service import GrpcService
from wings_server.settings import Address
from wings_server.tls import PeerSecurity

SECONDS = 30.0


class HaltedReplica(Replica):
    """A replica that carries out nothing while it is halted, and tells of what it does."""

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: SqliteHoldStore(path))
        self.goes = threading.Event()
        self.goes.set()
        self.begun: SimpleQueue[int] = SimpleQueue()

    def perform(self, requests: Sequence[Request]) -> Sequence[Answer]:
        self.begun.put(len(requests))
        assert self.goes.wait(SECONDS)
        return super().perform(requests)


@pytest.fixture
def replica(tmp_path: Path) -> Generator[HaltedReplica]:
    with closing(HaltedReplica(tmp_path / "holds.sqlite")) as replica:
        yield replica


def served(replica: HaltedReplica, token: str | None = None) -> GrpcService:
    security = PeerSecurity(token=token)
    service = GrpcService([hold_service(replica)], Address("127.0.0.1", 0), security)
    service.start()
    return service


def hold(number: int) -> HoldRequest:
    lease = Lease("c", number, "m")
    key = ShareKey("g", "t", UNPARTITIONED)
    return HoldRequest(key, (OffsetRange(number, number),), lease, 60_000, 100)


class Asking:
    """What is asked of a link, and the answers."""

    def __init__(self, link: RemoteLink) -> None:
        self.link = link
        self.answers: SimpleQueue[Answer] = SimpleQueue()

    def begin(self, *numbers: int, seconds: float = SECONDS) -> None:
        requests = [hold(number) for number in numbers]
        self.link.begin_all(requests, seconds, lambda _, answer: self.answers.put(answer))

    def take(self, count: int) -> list[Answer]:
        return [self.answers.get(timeout=SECONDS) for _ in range(count)]


def test_what_is_asked_meanwhile_goes_into_one_message(replica: HaltedReplica) -> None:
    service = served(replica)
    with closing(RemoteLink(str(service.address))) as link:
        asking = Asking(link)
        replica.goes.clear()
        asking.begin(0)
        assert replica.begun.get(timeout=SECONDS) == 1
        for number in (1, 2, 3):
            asking.begin(number)
        asking.begin(4, 5)
        replica.goes.set()
        assert not any(isinstance(each, WingsError) for each in asking.take(6))
        assert replica.begun.get(timeout=SECONDS) == 5
        assert replica.begun.empty()
    service.stop(0)


def test_a_replica_that_is_overdue_is_asked_on_a_new_session(replica: HaltedReplica) -> None:
    service = served(replica)
    with closing(RemoteLink(str(service.address))) as link:
        asking = Asking(link)
        replica.goes.clear()
        asking.begin(0, seconds=0)  # Overdue from the beginning.
        assert replica.begun.get(timeout=SECONDS) == 1
        asking.begin(1)
        refused = asking.take(2)
        assert all(isinstance(each, Unavailable) for each in refused), refused
        replica.goes.set()
        asking.begin(2)
        (answer,) = asking.take(1)
        assert not isinstance(answer, WingsError)
    service.stop(0)


def test_a_service_that_stops_answers_what_is_under_way_and_ends_idle_sessions(
    replica: HaltedReplica, calls: Calls
) -> None:
    service = served(replica)
    sessions = calls.heard(HoldSession, "__init__")
    with closing(RemoteLink(str(service.address))) as link:
        asking = Asking(link)
        asking.begin(0)
        asking.take(1)  # The session is idle from now on.
        ((idle, *_),) = sessions
        replica.begun.get(timeout=SECONDS)
        with closing(RemoteLink(str(service.address))) as other:
            busy = Asking(other)
            replica.goes.clear()
            busy.begin(1)
            assert replica.begun.get(timeout=SECONDS) == 1
            stopping = threading.Thread(target=service.stop, args=(SECONDS,))
            stopping.start()
            pause = threading.Event()
            while not idle.has_ended:
                pause.wait(0.002)
            replica.goes.set()
            (answer,) = busy.take(1)
            assert not isinstance(answer, WingsError)
            stopping.join()
        asking.begin(2)
        (answer,) = asking.take(1)
        assert isinstance(answer, Unavailable)


def test_a_server_that_knows_no_sessions_is_named() -> None:
    service = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{service.add_insecure_port('127.0.0.1:0')}"
    service.start()
    with closing(RemoteLink(address)) as link:
        asking = Asking(link)
        asking.begin(0)
        (answer,) = asking.take(1)
        assert isinstance(answer, Unavailable)
        assert address in answer.message
    service.stop(0)


@pytest.mark.parametrize("token", ["of the cluster", "of another"])
def test_a_session_presents_the_token_of_the_cluster(replica: HaltedReplica, token: str) -> None:
    service = served(replica, "of the cluster")
    with closing(RemoteLink(str(service.address), PeerAccess(token))) as link:
        asking = Asking(link)
        asking.begin(0)
        (answer,) = asking.take(1)
        assert isinstance(answer, Unavailable) == (token == "of another")
    service.stop(0)


def test_a_message_that_is_refused_ends_its_session_alone(replica: HaltedReplica) -> None:
    service = served(replica)
    with (
        closing(RemoteLink(str(service.address))) as link,
        grpc.insecure_channel(str(service.address)) as channel,
    ):
        asking = Asking(link)
        asking.begin(0)
        asking.take(1)
        session = channel.stream_stream("/wings.v1.HoldService/Session")
        for message in (b"\xff\xff", b"\x0a\x00"):
            with pytest.raises(grpc.RpcError) as refused:
                list(session(iter([message])))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # pyright: ignore[reportAttributeAccessIssue]
        asking.begin(3)
        (answer,) = asking.take(1)
        assert not isinstance(answer, WingsError)
        bad = HoldRequest(hold(1).key, (OffsetRange(3, 1),), Lease("c", 1, "m"), 1_000, 10)
        link.begin_all([bad], SECONDS, lambda _, answer: asking.answers.put(answer))
        assert isinstance(asking.take(1)[0], InvalidArgument)
    service.stop(0)


class Answered:
    """A call on which a replica answers what it is told to."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[bytes] = SimpleQueue()

    def __call__(self, requests: Iterator[bytes]) -> "Answered":
        del requests
        return self

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.messages.get, b"never")

    def cancel(self) -> None:
        """End nothing: no more is read."""


def test_what_was_answered_with_too_few_answers_fails_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults: SimpleQueue[BaseException | None] = SimpleQueue()

    def note(fault: threading.ExceptHookArgs) -> None:
        faults.put(fault.exc_value)

    monkeypatch.setattr(threading, "excepthook", note)
    call = Answered()
    session = HoldSession(cast("Any", call), cast("Any", None))
    answers: SimpleQueue[Answer] = SimpleQueue()
    until = time.monotonic() + SECONDS
    assert session.begin(Asked((hold(0),), until, lambda _, answer: answers.put(answer)))
    call.messages.put(b"")
    assert isinstance(answers.get(timeout=SECONDS / 2), Unavailable)
    assert isinstance(faults.get(timeout=SECONDS), ValueError)


# A link to whichever node serves the only replica. ################################################


Done = Callable[[int, Answer], None]


def refuse() -> NoReturn:
    raise Unavailable("another process has it")


def test_a_request_whose_next_owner_no_thread_can_ask_is_answered(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    late = Unavailable("it does not answer")

    def answer_late(_: RemoteLink, requests: object, seconds: float, done: Done) -> None:
        calls.fail(threading.Thread, "start", RuntimeError("can't start new thread"))
        done(0, late)

    monkeypatch.setattr(RemoteLink, "begin_all", answer_late)
    link = SharedLink(Replica(refuse), "127.0.0.1:9", lambda: "127.0.0.1:1", PeerAccess())
    answers: list[Answer] = []
    link.begin_all([ForgetRequest("group")], SECONDS, lambda _, answer: answers.append(answer))
    assert answers == [late]
    link.close()


def test_a_session_whose_thread_does_not_start_has_ended(calls: Calls) -> None:
    call = Mock()
    calls.fail(threading.Thread, "start", RuntimeError("can't start new thread"))
    session = HoldSession(Mock(return_value=call), Mock())
    assert session.has_ended
    assert isinstance(session.error, Unavailable)
    call.cancel.assert_called_once_with()


def test_a_link_that_is_slow_to_close_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, calls: Calls
) -> None:
    closing, closes = threading.Event(), threading.Event()

    def wait(_: RemoteLink) -> None:
        closing.set()
        assert closes.wait(2 * SECONDS)

    monkeypatch.setattr("wings_core.share.remote.link.LINKS_MAX", 1)
    calls.before(RemoteLink, "close", wait)
    link = SharedLink(Replica(refuse), "127.0.0.1:9", lambda: None, PeerAccess())
    remote: Callable[[str], RemoteLink] = link._remote  # pyright: ignore[reportPrivateUsage]
    remote("127.0.0.1:1")
    with ThreadPoolExecutor(2) as threads:
        try:
            second = threads.submit(remote, "127.0.0.1:2")
            assert closing.wait(SECONDS)
            again = threads.submit(remote, "127.0.0.1:2").result(SECONDS)
        finally:
            closes.set()
        assert second.result(SECONDS) is again
    link.close()
