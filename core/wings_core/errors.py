"""Every error that Wings raises, as one tree under `WingsError`.

    WingsError
    ├── InvalidArgument             INVALID_ARGUMENT
    │   ├── InvalidName             INVALID_NAME
    │   ├── InvalidTicket           INVALID_TICKET
    │   ├── InvalidSchema           INVALID_SCHEMA
    │   ├── SchemaMismatch          SCHEMA_MISMATCH
    │   ├── PartitionRequired       PARTITION_REQUIRED
    │   ├── PartitionNotAllowed     PARTITION_NOT_ALLOWED
    │   ├── PartitionTypeMismatch   PARTITION_TYPE_MISMATCH
    │   ├── InvalidFilter           INVALID_FILTER
    │   └── InvalidSql              INVALID_SQL
    ├── NotFound
    │   ├── NamespaceNotFound       NAMESPACE_NOT_FOUND
    │   ├── TopicNotFound           TOPIC_NOT_FOUND
    │   ├── GroupNotFound           GROUP_NOT_FOUND
    │   ├── StageNotFound           STAGE_NOT_FOUND
    │   └── TokenNotFound           TOKEN_NOT_FOUND
    ├── Conflict
    │   ├── AlreadyExists           ALREADY_EXISTS
    │   ├── NamespaceNotEmpty       NAMESPACE_NOT_EMPTY
    │   ├── OffsetMismatch          OFFSET_MISMATCH
    │   ├── OutOfOrderSequence      OUT_OF_ORDER_SEQUENCE
    │   ├── PublishFenced           PUBLISH_FENCED
    │   ├── FencedMember            FENCED_MEMBER
    │   └── InvalidRecordState      INVALID_RECORD_STATE
    ├── OffsetOutOfRange            OFFSET_OUT_OF_RANGE
    ├── BatchTooLarge               BATCH_TOO_LARGE
    ├── Unauthenticated             UNAUTHENTICATED
    ├── PermissionDenied            PERMISSION_DENIED
    ├── ResourceExhausted           RESOURCE_EXHAUSTED
    ├── Unavailable                 UNAVAILABLE
    ├── StorageCorrupt              STORAGE_CORRUPT
    └── Internal                    INTERNAL

An error has a message, a stable `code`, and `facts` for programs (the actual offset, the column).
Facts are sent on the wire beside code and message and read as attributes, so `error.next_offset` is
the same on the server and in a client.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

# ruff: noqa: N818 - classes are named after their codes, which are part of the contract.


class WingsError(Exception):
    """The root of all errors of Wings.

    Args:
        message: The problem, for a person; names the value and the expected one.
        facts: JSON values for a program, readable as attributes of the error.
    """

    code: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, /, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        """Read a fact; called only for names that are not ordinary attributes."""
        facts: dict[str, Any] = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no fact {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with facts, for errors that cross process borders."""
        return _rebuild, (type(self), self.message, self.facts)

    def to_json(self) -> dict[str, Any]:
        """Return `{"code", "message", ...facts}`, the form that every wire carries."""
        return {"code": self.code, "message": self.message, **self.facts}

    def bounded_json(self, message: str, bytes_max: int) -> bytes:
        """Return `to_json` with this message, and without the facts that would make it too long."""
        body: dict[str, Any] = {"code": self.code, "message": message}
        for name, value in self.facts.items():
            if len(_dump({**body, name: value})) <= bytes_max:
                body[name] = value
        return _dump(body)


def _dump(body: dict[str, Any]) -> bytes:
    # Escaped non-ASCII could make a message of 512 bytes three times as long.
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _rebuild(cls: type[WingsError], message: str, facts: dict[str, Any]) -> WingsError:
    return cls(message, **facts)


class InvalidArgument(WingsError):
    """An invalid request, which can never succeed."""

    code = "INVALID_ARGUMENT"


class InvalidName(InvalidArgument):
    """A malformed name of a tenant, namespace or topic, or a bad id in it."""

    code = "INVALID_NAME"


class InvalidTicket(InvalidArgument):
    """A DoGet ticket with an unknown key or a bad value."""

    code = "INVALID_TICKET"


class InvalidSchema(InvalidArgument):
    """A topic schema with an unsupported type, a reserved name, or a bad partition key."""

    code = "INVALID_SCHEMA"


class SchemaMismatch(InvalidArgument):
    """Rows that do not fit the topic's schema; fact `column` names the column.

    Where a stream also has a column that the topic lacks, fact `superfluous` names it.
    """

    code = "SCHEMA_MISMATCH"


class PartitionRequired(InvalidArgument):
    """A partitioned topic was addressed without a partition value."""

    code = "PARTITION_REQUIRED"


class PartitionNotAllowed(InvalidArgument):
    """A topic without a partition key was addressed with a partition value."""

    code = "PARTITION_NOT_ALLOWED"


class PartitionTypeMismatch(InvalidArgument):
    """A partition value that is not of the key column's kind."""

    code = "PARTITION_TYPE_MISMATCH"


class InvalidFilter(InvalidArgument):
    """A filter that is not one boolean scalar expression, or that fails on the data."""

    code = "INVALID_FILTER"


class InvalidSql(InvalidArgument):
    """A statement that cannot be run; fact `position` is the offending character, from 1."""

    code = "INVALID_SQL"


class NotFound(WingsError):
    """Something named in the request does not exist."""


class NamespaceNotFound(NotFound):
    """No such namespace."""

    code = "NAMESPACE_NOT_FOUND"


class TopicNotFound(NotFound):
    """No such topic, or the topic was deleted meanwhile."""

    code = "TOPIC_NOT_FOUND"


class GroupNotFound(NotFound):
    """No such share group."""

    code = "GROUP_NOT_FOUND"


class StageNotFound(NotFound):
    """No such stage: never written, aborted, published, or swept."""

    code = "STAGE_NOT_FOUND"


class TokenNotFound(NotFound):
    """No such token: never created, or revoked."""

    code = "TOKEN_NOT_FOUND"


class Conflict(WingsError):
    """A request that conflicts with the current state."""


class AlreadyExists(Conflict):
    """The object to create exists already."""

    code = "ALREADY_EXISTS"


class NamespaceNotEmpty(Conflict):
    """A namespace that still has topics cannot be deleted."""

    code = "NAMESPACE_NOT_EMPTY"


class OffsetMismatch(Conflict):
    """Compare-and-append failed; fact `next_offset` is the actual next offset."""

    code = "OFFSET_MISMATCH"


class OutOfOrderSequence(Conflict):
    """A producer's sequence has a gap, or repeats one that is no longer remembered."""

    code = "OUT_OF_ORDER_SEQUENCE"


class PublishFenced(Conflict):
    """A publish by a writer that is no longer the owner."""

    code = "PUBLISH_FENCED"


class FencedMember(Conflict):
    """A consumer group's member that is unknown, was replaced, or does not hold the partition."""

    code = "FENCED_MEMBER"


class InvalidRecordState(Conflict):
    """An acknowledgement of a message that its sender does not hold."""

    code = "INVALID_RECORD_STATE"


class OffsetOutOfRange(WingsError):
    """An offset below the log's start, which fact `log_start_offset` holds."""

    code = "OFFSET_OUT_OF_RANGE"


class BatchTooLarge(WingsError):
    """A pushed batch beyond the limit on bytes or partitions."""

    code = "BATCH_TOO_LARGE"


class Unauthenticated(WingsError):
    """The caller is not authenticated."""

    code = "UNAUTHENTICATED"


class PermissionDenied(WingsError):
    """The caller may not do this."""

    code = "PERMISSION_DENIED"


class ResourceExhausted(WingsError):
    """A limit of the server is reached; retry later."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(WingsError):
    """The server is stopping, or cannot reach something it needs; retry."""

    code = "UNAVAILABLE"


class StorageCorrupt(WingsError):
    """A damaged, truncated or missing page; facts `folio` and `position` locate it."""

    code = "STORAGE_CORRUPT"


class Internal(WingsError):
    """A fault of the server's own, or of the disk under it."""

    code = "INTERNAL"


def _concrete(cls: type[WingsError]) -> dict[str, type[WingsError]]:
    found = {cls.code: cls} if "code" in vars(cls) and cls is not WingsError else {}
    for child in cls.__subclasses__():
        found.update(_concrete(child))
    return found


ERRORS_BY_CODE: Mapping[str, type[WingsError]] = _concrete(WingsError)


def error_from_json(body: Mapping[str, Any]) -> WingsError:
    """Rebuild an error from `WingsError.to_json`; an unknown code becomes `Internal`.

    Args:
        body: Object with `code`, `message` and the facts.
    """
    facts = {name: value for name, value in body.items() if name not in {"code", "message"}}
    code = str(body.get("code", "INTERNAL"))
    cls = ERRORS_BY_CODE.get(code)
    message = str(body.get("message", code))
    if cls is None:
        return Internal(f"{code}: {message}", **facts)
    return cls(message, **facts)


NEAR_MAX = 3
"""Most names suggested."""

LISTED_CHARACTERS_MAX = 350
"""Longest list of all names in a message, in characters."""


def nearest(asked: str, known: Iterable[str]) -> list[str]:
    """Return the most similar known names, ignoring case, the best first."""
    import difflib  # For an error alone: every program of ours imports this module.

    by_lower = {name.lower(): name for name in reversed(list(known))}
    near = difflib.get_close_matches(asked[:LISTED_CHARACTERS_MAX].lower(), by_lower, NEAR_MAX)
    return [by_lower[name] for name in near]


def did_you_mean(asked: str, known: Iterable[str]) -> str:
    """Return the most similar known names as the end of a sentence; empty without any."""
    near = nearest(asked, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def suggested(asked: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: similar names, or all names.

    Args:
        asked: The unknown name.
        known: All known names, in the order to list them.
    """
    names = list(known)
    end = did_you_mean(asked, names)
    listed = ", ".join(name if name.isprintable() else repr(name) for name in names)
    if not 0 < len(listed) <= LISTED_CHARACTERS_MAX:
        return end
    verb = "is" if len(names) == 1 else "are"
    return f"{end} There {verb} {listed}" if end else f"; there {verb} {listed}"


def first_bad(count: int, is_bad: Callable[[int, int], bool]) -> int:
    """Return the index of the first bad row, in about log2(count) calls.

    Args:
        count: Number of rows, at least one of which is bad.
        is_bad: Returns whether one of the rows `[low, high)`, never empty, is bad. Rows before
            `low` are known to be good.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if is_bad(low, middle):
            high = middle
        else:
            low = middle
    return low
