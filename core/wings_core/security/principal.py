"""Principals, and the one function that decides what they may do."""

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
    """Who makes a call, and what it may do.

    Args:
        name: That of its token, for errors and the log.
        grants: What it may do. `admin` on `*` makes it an operator, who may do everything.
        ended: Returns the error that ends its calls once its token was revoked or has expired,
            else None; from any thread, without blocking.
        usage: What it uses, where it has quotas; None: it has none.
    """

    name: str
    grants: tuple[Grant, ...]
    ended: Callable[[], WingsError | None] = field(default=_stays, repr=False)
    usage: Usage | None = field(default=None, repr=False)

    is_operator: bool = field(init=False, repr=False)
    """Whether it may do everything."""

    def __post_init__(self) -> None:
        """Find out once what each call asks."""
        object.__setattr__(self, "is_operator", Grant(Right.ADMIN, EVERYTHING) in self.grants)

    def may(self, right: Right, name: str) -> bool:
        """Whether it has a right on a full name, on `EVERYTHING`, or `SOMEWHERE`."""
        return self.is_operator or any(
            grant.right is right and grant.matches(name) for grant in self.grants
        )

    def may_see(self, name: str) -> bool:
        """Whether it may know of a topic: by any of `DATA_RIGHTS`."""
        return any(self.may(right, name) for right in DATA_RIGHTS)

    def may_see_namespace(self, namespace: NamespaceName) -> bool:
        """Whether it has any right on a namespace, or on names within it."""
        return self.is_operator or any(
            grant.right is not Right.METRICS and grant.reaches_into(namespace)
            for grant in self.grants
        )

    def topics(self, admin: Admin, *rights: Right) -> Iterator[Topic]:
        """Yield the topics, of all namespaces, on which it has one of these rights."""
        for topic in all_topics(admin, self.may_see_namespace):
            if any(self.may(right, str(topic.name)) for right in rights):
                yield topic

    def check(self) -> None:
        """Raise the error that ends its calls, if there is one.

        Raises:
            Unauthenticated: Its token was revoked or has expired.
            Unavailable: Metadata cannot be asked whether it was.
        """
        error = self.ended()
        if error is not None:
            raise error


OPERATOR_GRANTS = (Grant(Right.ADMIN, EVERYTHING),)

ANYONE = Principal("anyone", OPERATOR_GRANTS)
"""Every caller of a log that never had a token."""


CALLER: ContextVar[Principal] = ContextVar("CALLER", default=ANYONE)
"""The principal whose action runs, for what an action decides only while it runs."""


def authorize(principal: Principal, right: Right | Iterable[Right], name: str) -> None:
    """Decide whether a principal may do something; the only place where that is decided.

    Called before a name is looked up, so that the answer does not tell whether it exists.

    Args:
        principal: Who calls.
        right: The right that is needed, or several of which any will do.
        name: The full name of a topic or namespace, `EVERYTHING`, or `SOMEWHERE`.

    Raises:
        PermissionDenied: It has none of the rights on the name.
    """
    if principal.is_operator:
        return
    rights = (right,) if isinstance(right, Right) else tuple(right)
    if not any(principal.may(each, name) for each in rights):
        wanted = " or ".join(rights)
        what = {EVERYTHING: "the server", SOMEWHERE: "anything"}.get(name, name)
        raise PermissionDenied(f"{principal.name} has no right to {wanted} on {what}")
