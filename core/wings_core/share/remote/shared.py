"""SharedLink: the only replica of nodes that share PostgreSQL; one of them serves it at a time.

The one that serves it has a lease, and its address stands beside that. The others send it what they
are asked. Where it is gone, the next node that is asked for something once the lease is over takes
over.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from wings_core.errors import Unavailable, WingsError
from wings_core.security.tokens import PeerAccess
from wings_core.share.remote.link import RemoteLink
from wings_core.share.replica.replica import Replica
from wings_core.share.replica.requests import Answer, ReleaseRequest, Request, refused
from wings_core.times import Deadline

LINKS_MAX = 16
"""Connections to owners of before that are kept; nodes come and go."""


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
