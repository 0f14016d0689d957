"""Principals: the only function that authorizes them, and the cache that authenticates them.

All tokens, at most `TOKENS_MAX`, are cached, so that a call with a bad token needs no metadata. A
thread asks for changes every second. If metadata cannot be reached for `STALE_SECONDS`, tokens are
rejected with UNAVAILABLE, as they may have been revoked; the root token is not stored, and remains
valid.
"""

import hmac
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from wings_core.errors import (
    InvalidArgument,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    WingsError,
)
from wings_core.metadata.interfaces import Admin, Tokens, all_topics
from wings_core.model import Topic
from wings_core.names import NamespaceName
from wings_core.security.quotas import Usage
from wings_core.security.rights import DATA_RIGHTS, EVERYTHING, SOMEWHERE, Grant, Right
from wings_core.security.tokens import Token, check_root, digest_of
from wings_core.times import now_us


def _stays() -> None:
    return None


@dataclass(frozen=True, slots=True, eq=False)
class Principal:
    """The identity of a caller, with its rights.

    Args:
        name: Name of its token, for errors and the log.
        grants: Its grants. `admin` on `*` makes it an operator, which may do everything.
        ended: Returns the error that ends its calls after its token was revoked or has expired, or
            None. Thread-safe, non-blocking.
        usage: Usage against its quotas; None without quotas.
    """

    name: str
    grants: tuple[Grant, ...]
    ended: Callable[[], WingsError | None] = field(default=_stays, repr=False)
    usage: Usage | None = field(default=None, repr=False)

    is_operator: bool = field(init=False, repr=False)
    """Whether the principal may do everything."""

    def __post_init__(self) -> None:
        """Precompute `is_operator`."""
        object.__setattr__(self, "is_operator", Grant(Right.ADMIN, EVERYTHING) in self.grants)

    def may(self, right: Right, name: str) -> bool:
        """Return whether it has a right on a full name, on `EVERYTHING`, or `SOMEWHERE`."""
        return self.is_operator or any(
            grant.right is right and grant.matches(name) for grant in self.grants
        )

    def may_see(self, name: str) -> bool:
        """Return whether it may know that a topic exists, by any of `DATA_RIGHTS`."""
        return any(self.may(right, name) for right in DATA_RIGHTS)

    def may_see_namespace(self, namespace: NamespaceName) -> bool:
        """Return whether it has any right on a namespace, or on names within it."""
        return self.is_operator or any(
            grant.right is not Right.METRICS and grant.reaches_into(namespace)
            for grant in self.grants
        )

    def topics(self, admin: Admin, *rights: Right) -> Iterator[Topic]:
        """Yield the topics of all namespaces on which it has one of `rights`."""
        for topic in all_topics(admin, self.may_see_namespace):
            if any(self.may(right, str(topic.name)) for right in rights):
                yield topic

    def check(self) -> None:
        """Raise the error that ends its calls, if there is one.

        Raises:
            Unauthenticated: The token was revoked or has expired.
            Unavailable: Metadata cannot be reached, so that the token may have been revoked.
        """
        error = self.ended()
        if error is not None:
            raise error


OPERATOR_GRANTS = (Grant(Right.ADMIN, EVERYTHING),)

ANYONE = Principal("anyone", OPERATOR_GRANTS)
"""The principal of every caller of a log that never had a token."""


CALLER: ContextVar[Principal] = ContextVar("CALLER", default=ANYONE)
"""The principal of the running action, for checks within the action."""


SECRET: ContextVar[str | None] = ContextVar("SECRET", default=None)
"""The secret that the caller of the running action presented, to pass it on to another node."""


def authorize(principal: Principal, right: Right | Iterable[Right], name: str) -> None:
    """Check that a principal has a right; the only place for that decision.

    Called before a name is looked up, so that the response does not reveal whether it exists.

    Args:
        principal: The caller.
        right: The required right, or several, any of which suffices.
        name: The full name of a topic or namespace, `EVERYTHING`, or `SOMEWHERE`.

    Raises:
        PermissionDenied: The principal has none of the rights on the name.
    """
    if principal.is_operator:
        return
    rights = (right,) if isinstance(right, Right) else tuple(right)
    if not any(principal.may(each, name) for each in rights):
        wanted = " or ".join(rights)
        what = {EVERYTHING: "the server", SOMEWHERE: "anything"}.get(name, name)
        raise PermissionDenied(f"{principal.name} has no right to {wanted} on {what}")


POLL_SECONDS = 1.0
"""Interval of asking metadata for changes."""

STALE_SECONDS = 4.0
"""Time for which tokens are valid without a response from metadata. With the interval of asking, it
stays below the 5 s in which a revocation takes effect on every node."""

UNKNOWN_SECONDS = 0.02
"""See `Authenticator`."""

ROOT_NAME = "root"
"""Name of the root token's principal."""


@dataclass(slots=True)
class _Known:
    """A cached token, and its principal."""

    token: Token
    principal: Principal = field(init=False)
    revoked: bool = False
    usage: Usage = field(init=False)
    """Usage, kept when quotas change, so that calls in progress stay counted."""


class Authenticator:
    """Finds the principal of a secret. Thread-safe.

    Args:
        tokens: The store of tokens.
        root: The root token, if there is one.
        clock: Returns the time for expiry, in microseconds since the epoch.
        monotonic: Returns the time by which responses of metadata become stale, in seconds.
        poll_seconds: Interval of asking metadata for changes.
        unknown_seconds: The least time between two requests to metadata for unknown tokens, which
            may have been created at other nodes: so bad tokens do not flood metadata.

    Raises:
        InvalidArgument: The root token is shorter than `ROOT_CHARACTERS_MIN`, or does not fit in a
            header.
        Unavailable: Metadata cannot be reached.
    """

    def __init__(
        self,
        tokens: Tokens,
        root: str | None = None,
        clock: Callable[[], int] = now_us,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        poll_seconds: float = POLL_SECONDS,
        unknown_seconds: float = UNKNOWN_SECONDS,
    ) -> None:
        if root is not None:
            try:
                check_root(root)
            except InvalidArgument as error:
                raise InvalidArgument(f"the root token: {error.message}") from None
        self._tokens = tokens
        self._root = None if root is None else digest_of(root)
        self._root_principal = Principal(ROOT_NAME, OPERATOR_GRANTS)
        self._clock = clock
        self._monotonic = monotonic
        self._poll_seconds = poll_seconds
        self._unknown_seconds = unknown_seconds
        self._known: dict[bytes, _Known] = {}
        self._changes = 0
        self._asked_at = 0.0
        """Monotonic time of the last request to metadata."""
        self._confirmed_at = 0.0
        """Monotonic time of the last successful request."""
        # Held during a request to metadata, so that an older response never replaces a newer one.
        self._refreshing = threading.Lock()
        self.refresh()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-tokens", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether calls need no token: there is no root token, and never was another token."""
        return self._root is None and self._changes == 0

    def knows(self, secret: str | None) -> bool:
        """Return whether `principal` needs no request to metadata."""
        digest = None if secret is None else digest_of(secret)
        return self.is_open or digest is None or digest == self._root or digest in self._known

    def principal(self, secret: str | None) -> Principal:
        """Return the principal of a secret.

        Blocks for a request to metadata if the token is unknown.

        Args:
            secret: The secret presented, or None.

        Returns:
            The principal; `ANYONE` if no token is needed, whatever is presented.

        Raises:
            Unauthenticated: There is no secret, or it is not that of a valid token.
            Unavailable: Metadata cannot be reached, so that the token may have been revoked.
        """
        if self.is_open:
            return ANYONE
        if secret is None:
            raise Unauthenticated(
                "a token is needed: by `--token-file` or WINGS_TOKEN, connect(token=...), or the "
                "header `authorization: Bearer TOKEN`"
            )
        digest = digest_of(secret)
        if self._root is not None and hmac.compare_digest(self._root, digest):
            return self._root_principal
        known = self._known.get(digest)
        if known is None:
            self._look_for_new()
            known = self._known.get(digest)
        if known is None or not hmac.compare_digest(known.token.digest, digest):
            self._check_fresh()
            raise Unauthenticated("the token is not valid: unknown, revoked or expired")
        known.principal.check()
        return known.principal

    def refresh(self) -> None:
        """Read changes from metadata; blocks for the request.

        Raises:
            Unavailable: Metadata cannot be reached.
        """
        with self._refreshing:
            self._ask()

    def close(self) -> None:
        """End the thread; waits for a request in progress."""
        self._closing.set()
        self._thread.join()

    def _look_for_new(self) -> None:
        """Ask metadata for tokens created at other nodes; waits for the time to ask.

        Concurrent callers share one request, and none waits twice if metadata does not respond.

        Raises:
            Unavailable: Metadata does not respond.
        """
        arrived_at = self._monotonic()
        self._check_fresh()
        if not self._refreshing.acquire(timeout=STALE_SECONDS):
            raise Unavailable("metadata does not respond, so the token cannot be verified")
        try:
            if self._asked_at <= arrived_at:
                self._closing.wait(self._asked_at + self._unknown_seconds - arrived_at)
                with suppress(WingsError):
                    self._ask()
        finally:
            self._refreshing.release()

    def _ask(self) -> None:
        self._asked_at = asked_at = self._monotonic()
        # Read before the tokens, so that concurrent changes are found the next time.
        changes = self._tokens.changes()
        if changes != self._changes:
            self._replace(self._tokens.all())
            self._changes = changes
        self._confirmed_at = asked_at

    def _replace(self, tokens: list[Token]) -> None:
        before = self._known
        known = {token.digest: before.get(token.digest) or self._learn(token) for token in tokens}
        for token in tokens:
            _alter(known[token.digest], token)
        self._known = known
        for digest, each in before.items():
            each.revoked = digest not in known

    def _learn(self, token: Token) -> _Known:
        known = _Known(token)
        known.principal = Principal(token.name, token.grants, lambda: self._ended(known))
        known.usage = Usage(token.name, token.quotas)
        return known

    def _ended(self, known: _Known) -> WingsError | None:
        if known.revoked:
            return Unauthenticated(f"the token {known.token.name!r} was revoked")
        expires_at = known.token.expires_at
        if expires_at is not None and expires_at <= self._clock():
            return Unauthenticated(f"the token {known.token.name!r} has expired")
        try:
            self._check_fresh()
        except Unavailable as error:
            return error
        return None

    def _check_fresh(self) -> None:
        silent = self._monotonic() - self._confirmed_at
        if silent > STALE_SECONDS:
            raise Unavailable(
                f"metadata has not responded for {silent:.0f} s, so the token cannot be verified"
            )

    def _run(self) -> None:
        while not self._closing.wait(self._poll_seconds):
            with suppress(Exception):  # Tokens become stale until the next response.
                self.refresh()


def _alter(known: _Known, token: Token) -> None:
    """Apply the current quotas of a token to its principal."""
    known.token = token
    known.usage.quotas = token.quotas
    if (known.principal.usage is None) == bool(token.quotas):
        usage = known.usage if token.quotas else None
        known.principal = replace(known.principal, usage=usage)
