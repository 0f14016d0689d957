"""Principals, and the only function that authorizes them."""

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from wings_core.errors import PermissionDenied, WingsError
from wings_core.metadata.interfaces import Admin, all_topics
from wings_core.model import Topic
from wings_core.names import NamespaceName
from wings_core.security.quotas import Usage
from wings_core.security.rights import DATA_RIGHTS, EVERYTHING, SOMEWHERE, Grant, Right


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
