"""The principals of tokens, kept in memory and refreshed from metadata.

All tokens are held, as there are `TOKENS_MAX` at most: so a call with a bad token costs metadata
nothing. One thread asks every second whether they changed. Where metadata cannot be asked for
`STALE_SECONDS`, tokens are refused with UNAVAILABLE, as one of them may have been revoked; the root
token is in no store, and remains valid.
"""

import hmac
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from wings_core.errors import InvalidArgument, Unauthenticated, Unavailable, WingsError
from wings_core.metadata.interfaces import Tokens
from wings_core.security.principal import ANYONE, OPERATOR_GRANTS, Principal
from wings_core.security.quotas import Usage
from wings_core.security.tokens import Token, check_root, digest_of
from wings_core.times import now_us

POLL_SECONDS = 1.0
"""How often metadata is asked whether tokens changed."""

STALE_SECONDS = 4.0
"""How long tokens are taken for valid without an answer of metadata. With the poll it stays below
the 5 s within which a revocation holds on every node."""

UNKNOWN_SECONDS = 0.2
"""How long after a question to metadata an unknown token is refused without asking again, so that
bad ones do not flood metadata: one that was created at another node is found after that."""

ROOT_NAME = "root"
"""The principal of the root token."""


@dataclass(slots=True)
class _Known:
    """A token that metadata had when it was last asked, and its principal."""

    token: Token
    principal: Principal = field(init=False)
    revoked: bool = False
    usage: Usage = field(init=False)
    """Kept over changes of the quotas, so that calls under way stay counted."""


class Authenticator:
    """Finds the principal of a secret; all methods from any thread.

    Args:
        tokens: Where tokens are.
        root: The root token, if there is one.
        clock: Microseconds since the epoch, by which tokens expire.

    Raises:
        InvalidArgument: The root token is shorter than `ROOT_CHARACTERS_MIN`, or no header can hold
            it.
        Unavailable: Metadata cannot be reached.
    """

    def __init__(
        self, tokens: Tokens, root: str | None = None, clock: Callable[[], int] = now_us
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
        self._known: dict[bytes, _Known] = {}
        self._changes = 0
        self._asked_at = 0.0
        """When metadata was last asked, on the monotonic clock,"""
        self._confirmed_at = 0.0
        """and when last with success."""
        # Held while metadata is asked, so that an older answer never replaces a newer one.
        self._refreshing = threading.Lock()
        self.refresh()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-tokens", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether calls need no token: there is no root token, and there was never another."""
        return self._root is None and self._changes == 0

    def knows(self, secret: str | None) -> bool:
        """Whether `principal` will return or raise without asking metadata."""
        digest = None if secret is None else digest_of(secret)
        return self.is_open or digest is None or digest == self._root or digest in self._known

    def principal(self, secret: str | None) -> Principal:
        """Return the principal that presents a secret.

        Blocks for a question to metadata where the token is not known.

        Args:
            secret: None where none is presented.

        Returns:
            `ANYONE` where no token is needed, whatever is presented.

        Raises:
            Unauthenticated: There is no secret, or it is of no valid token.
            Unavailable: Metadata cannot be asked whether the token was revoked.
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
        """Read what changed in metadata since it was last asked; blocks for that.

        Raises:
            Unavailable: It cannot be reached.
        """
        with self._refreshing:
            self._ask()

    def close(self) -> None:
        """End the thread; waits for a question under way."""
        self._closing.set()
        self._thread.join()

    def _look_for_new(self) -> None:
        """Ask metadata for tokens that were created elsewhere, unless it was asked lately.

        Of many callers one asks for all. Where metadata does not answer, none waits for it twice.

        Raises:
            Unavailable: It does not answer.
        """
        arrived_at = time.monotonic()
        self._check_fresh()
        if arrived_at - self._asked_at <= UNKNOWN_SECONDS:
            return
        if not self._refreshing.acquire(timeout=STALE_SECONDS):
            raise Unavailable("metadata does not answer whether there is such a token")
        try:
            if self._asked_at <= arrived_at:
                with suppress(WingsError):
                    self._ask()
        finally:
            self._refreshing.release()

    def _ask(self) -> None:
        self._asked_at = asked_at = time.monotonic()
        # Read before the tokens: what changes meanwhile is found the next time.
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
        silent = time.monotonic() - self._confirmed_at
        if silent > STALE_SECONDS:
            raise Unavailable(
                f"metadata was last heard {silent:.0f} s ago: whether a token is valid cannot be "
                "told"
            )

    def _run(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            with suppress(Exception):  # Tokens become stale; the next answer ends that.
                self.refresh()


def _alter(known: _Known, token: Token) -> None:
    """Give a principal the quotas that its token has now; calls of one without them pass freely."""
    known.token = token
    known.usage.quotas = token.quotas
    if (known.principal.usage is None) == bool(token.quotas):
        usage = known.usage if token.quotas else None
        known.principal = replace(known.principal, usage=usage)
