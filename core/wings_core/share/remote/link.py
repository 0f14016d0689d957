"""RemoteLink: a replica in another process, which a coordinator asks over one call, a session.

    begin ─▶ waiting ─▶ (one message under way at a time) the replica ─▶ one thread reads ─▶ done

What is asked while a message is under way goes into the next, as the replica syncs once for each.

SharedLink: the only replica of nodes that share PostgreSQL; one of them serves it at a time. The
one that serves it has a lease, and its address stands beside that. The others send it what they are
asked. Where it is gone, the next node that is asked for something once the lease is over takes
over.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import grpc

from wings_core import tracing
from wings_core.errors import InvalidArgument, Unavailable, WingsError
from wings_core.metadata.remote.channel import ServiceChannel, Stub, error_of
from wings_core.security.tokens import PeerAccess
from wings_core.share.remote.codec import (
    decode_answer,
    decode_answers,
    encode_request,
    encoded_requests,
)
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import (
    BATCH_MAX,
    Answer,
    ForgetRequest,
    ReleaseRequest,
    Request,
    refused,
)
from wings_core.times import Deadline

LINKS_MAX = 16
"""Connections to owners of before that are kept; nodes come and go."""

Done = Callable[[int, Answer], None]
"""Called with the index of a request, and its answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Requests that are answered together."""

    requests: Sequence[Request]
    """At most `BATCH_MAX`."""
    until: float
    """When an answer comes too late, by the monotonic clock."""
    done: Done

    def fail(self, error: WingsError) -> None:
        """Answer all of them with an error."""
        for number, answer in enumerate(refused(self.requests, error)):
            self.done(number, answer)


class RemoteLink:
    """A replica over gRPC; it connects when it is first needed.

    Args:
        target: `HOST:PORT`.
        access: The credentials presented to it.
    """

    def __init__(self, target: str, access: PeerAccess | None = None) -> None:
        self._target = target
        self._channel = ServiceChannel(target, access)
        self._lock = threading.Lock()
        self._session: HoldSession | None = None
        self._open_session: Any = self._channel.channel.stream_stream(
            "/wings.v1.HoldService/Session"
        )
        self._stub = Stub(self._channel.channel, "HoldService")

    def begin_all(self, requests: Sequence[Request], seconds: float, done: Done) -> None:
        """Send requests over the session; see `ReplicaLink.begin_all`.

        Where the replica is silent, `done` is called at the next request.
        """
        # To forget takes long, and a call that is a part of a trace is a span of it.
        if isinstance(requests[0], ForgetRequest) or tracing.present() is not None:
            for number, request in enumerate(requests):
                self._call(request, seconds, partial(done, number))
            return
        for at in range(0, len(requests), BATCH_MAX):
            some = requests[at : at + BATCH_MAX]
            of_some = done if at == 0 else partial(_shifted, done, at)
            self._ask(Asked(some, time.monotonic() + seconds, of_some))

    def close(self) -> None:
        """Cancel the requests under way."""
        self._channel.close()

    def _call(self, request: Request, seconds: float, done: Callable[[Answer], None]) -> None:
        name, message = encode_request(request)
        try:
            future = getattr(self._stub, name).future(message, timeout=seconds)
        except ValueError:
            done(_closed())  # So gRPC says that the channel is closed.
            return

        def end(ended: object) -> None:
            done(self._answer(ended))

        future.add_done_callback(end)

    def _ask(self, asked: Asked) -> None:
        with self._lock:
            session = self._session
            if session is None or session.has_ended:
                try:
                    session = self._session = HoldSession(self._open_session, self._error_of)
                except ValueError:
                    session = None  # So gRPC says that the channel is closed.
        if session is None:
            asked.fail(_closed())
        elif not session.begin(asked):
            late = f"the replica of holds {self._target} does not answer in time"
            asked.fail(session.error or Unavailable(late))

    def _answer(self, ended: object) -> Answer:
        call = cast("grpc.Future[Any]", ended)
        try:
            return decode_answer(call.result())
        except grpc.RpcError as error:
            return self._error_of(error)
        except grpc.FutureCancelledError:
            return _closed()

    def _error_of(self, failed: grpc.RpcError) -> WingsError:
        """Return the error of a call; names the replica in an error of the connection."""
        if self._channel.closed:
            return _closed()
        if cast("grpc.Call", failed).code() is grpc.StatusCode.UNIMPLEMENTED:
            return Unavailable(
                f"no replica of holds is served at {self._target}: name those of this cluster "
                "with --hold-replicas"
            )
        error = error_of(failed, self._target)
        if not isinstance(error, Unavailable):
            return error
        return Unavailable(
            error.message.replace("the metadata service", "the replica of holds"), **error.facts
        )


class SharedLink:
    """A link to the replica wherever it is served, in this process or in another.

    Args:
        replica: This process's, which takes over; not closed with the link.
        own: Where others reach this process.
        find_owner: Returns where the process is reached that serves the replica; None: none does.
        access: Credentials presented to it.
    """

    def __init__(
        self,
        replica: Replica,
        own: str,
        find_owner: Callable[[], str | None],
        access: PeerAccess,
    ) -> None:
        self._replica = replica
        self._own = own
        self._find_owner = find_owner
        self._access = access
        self._lock = threading.Lock()
        """Nothing else is locked under it."""
        self._owner: str | None = None
        """Address as last looked up; None: to be looked up."""
        self._links: dict[str, RemoteLink] = {}
        self._closed = False

    def begin_all(
        self, requests: Sequence[Request], seconds: float, done: Callable[[int, Answer], None]
    ) -> None:
        """See `ReplicaLink.begin_all`; on the caller's thread where this process serves it."""
        self._begin(requests, Deadline.after(seconds), done, self._owner)

    def _begin(
        self,
        requests: Sequence[Request],
        deadline: Deadline,
        done: Callable[[int, Answer], None],
        owner: str | None,
    ) -> None:
        """Make requests of an owner that is known, or of the one that is looked up."""
        link: RemoteLink | None = None
        try:
            if not self._replica.serves:
                owner = owner or self._look_up()
                link = None if owner is None else self._remote(owner)
        except WingsError as error:
            answers: Sequence[Answer] = refused(requests, error)
        else:
            answers = self._replica.perform(requests) if link is None else ()
        if link is None:
            for number, answer in enumerate(answers):
                done(number, answer)
            return

        def end(number: int, answer: Answer) -> None:
            self._end(requests[number], deadline, partial(done, number), owner, answer)

        link.begin_all(requests, deadline.remaining() or 0.0, end)

    def _end(
        self,
        request: Request,
        deadline: Deadline,
        done: Callable[[Answer], None],
        owner: str | None,
        answer: Answer,
    ) -> None:
        """Take the answer of an owner, or try the next one."""
        if not isinstance(answer, Unavailable):
            done(answer)
            return
        if self._owner == owner:
            self._owner = None
        if isinstance(request, ReleaseRequest):
            done(answer)  # It may have been done, and would be refused the second time.
            return
        # Not here: this is the thread of the connection's answers.
        trying = threading.Thread(
            target=self._try_next, args=(request, deadline, done, owner, answer), daemon=True
        )
        try:
            trying.start()
        except RuntimeError:  # There are too many.
            done(answer)

    def _try_next(
        self,
        request: Request,
        deadline: Deadline,
        done: Callable[[Answer], None],
        before: str | None,
        answer: Answer,
    ) -> None:
        """Make a request of the next owner, where there is another one by now."""
        try:
            owner = self._look_up()
        except WingsError as error:
            done(error)
            return
        if owner == before or deadline.passed:
            done(answer)
        else:
            self._begin([request], deadline, lambda _, found: done(found), owner)

    def close(self) -> None:
        """See `ReplicaLink.close`."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
        for link in links:
            with suppress(Exception):
                link.close()

    def _look_up(self) -> str | None:
        """Return where the replica is served, None to try it here."""
        owner = self._find_owner()
        self._owner = None if owner == self._own else owner
        return self._owner

    def _remote(self, owner: str) -> RemoteLink:
        oldest: RemoteLink | None = None
        with self._lock:
            if self._closed:
                raise Unavailable("the coordinator of share groups is closed")
            link = self._links.get(owner)
            if link is None:
                if len(self._links) >= LINKS_MAX:
                    oldest = self._links.pop(next(iter(self._links)))
                link = self._links[owner] = RemoteLink(owner, self._access)
        if oldest is not None:
            oldest.close()
        return link


class HoldSession:
    """An open call; all methods from any thread.

    Args:
        method: Method of the channel; takes messages as bytes, and returns them so.
        error_of: Returns the error that a call ended with.
    """

    def __init__(
        self,
        method: "grpc.StreamStreamMultiCallable[bytes, bytes]",
        error_of: Callable[[grpc.RpcError], WingsError],
    ) -> None:
        self._error_of = error_of
        self._lock = threading.Lock()
        self._waiting: list[Asked] = []
        self._under_way: list[Asked] = []
        self.has_ended = False
        """Set when the session takes nothing any more."""
        self.error: WingsError | None = None
        """The error that it ended with; None: it goes on, or its requests were overdue."""
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Without a deadline of its own: see `begin`.
        self._call: Any = method(iter(self._messages.get, None))
        try:
            threading.Thread(target=self._read, name="wings-holds", daemon=True).start()
        except RuntimeError as error:  # There are too many.
            self._call.cancel()
            self._end(Unavailable(f"a session with a replica of holds failed: {error!r:.200}"))

    def begin(self, asked: Asked) -> bool:
        """Ask for something; its `done` is called on the session's thread.

        Returns:
            False where the session has ended, also before it was asked for anything, or ends now as
            what is under way is overdue: nothing was sent.
        """
        with self._lock:
            if self.has_ended:
                return False
            if not self._under_way:
                self._under_way = [asked]
                self._messages.put(encoded_requests(asked.requests))
                return True
            is_overdue = time.monotonic() > self._under_way[0].until
            if not is_overdue:
                self._waiting.append(asked)
                return True
            self.has_ended = True
        self._call.cancel()  # The replica must not carry it out long after.
        return False

    def _read(self) -> None:
        try:
            for message in self._call:
                self._answered(decode_answers(message))
        except grpc.RpcError as error:
            self._end(self._error_of(error))
        except BaseException as error:
            self._call.cancel()
            self._end(Unavailable(f"a session with a replica of holds failed: {error!r:.200}"))
            raise
        else:
            self._end(Unavailable("the replica of holds has ended its session"))

    def _answered(self, answers: Sequence[Answer]) -> None:
        with self._lock:
            answered = self._under_way
            if len(answers) != sum(len(each.requests) for each in answered):
                raise ValueError(f"{len(answers)} answers")
            self._under_way = []
            room = BATCH_MAX
            while self._waiting and len(self._waiting[0].requests) <= room:
                following = self._waiting.pop(0)
                room -= len(following.requests)
                self._under_way.append(following)
            if self._under_way:
                # Encoded messages follow one another as the requests of one.
                message = b"".join(encoded_requests(each.requests) for each in self._under_way)
                self._messages.put(message)
        found = iter(answers)
        for each in answered:
            for number in range(len(each.requests)):
                each.done(number, next(found))

    def _end(self, error: WingsError) -> None:
        with self._lock:
            self.has_ended, self.error = True, error
            left = [*self._under_way, *self._waiting]
            self._under_way, self._waiting = [], []
        self._messages.put(None)  # Ends gRPC's thread that takes them.
        for each in left:
            each.fail(error)


def _shifted(done: Done, at: int, number: int, answer: Answer) -> None:
    """Pass the answer to a request of a later message on."""
    done(at + number, answer)


def parse_targets(text: str) -> list[str]:
    """Parse the addresses of replicas, separated by commas.

    Raises:
        InvalidArgument: There is none, or one is named twice or is no address.
    """
    targets = [target.strip() for target in text.split(",") if target.strip()]
    if not targets or len(set(targets)) < len(targets):
        raise InvalidArgument(f"replicas of holds: expected addresses, each once; got {text!r}")
    for target in targets:
        host, _, port = target.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidArgument(f"replicas of holds: {target!r} is not HOST:PORT")
    return targets


def _closed() -> Unavailable:
    return Unavailable("the coordinator of share groups is closed")
