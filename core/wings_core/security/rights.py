"""Rights, and grants of them on names that match a pattern."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from wings_core.errors import InvalidArgument, InvalidName
from wings_core.names import ID_PATTERN, NamespaceName, TopicName

EVERYTHING = "*"
"""Name of the server as a whole, matched only by the pattern `*`."""

SOMEWHERE = ""
"""Placeholder for any name, matched by every pattern."""

PATTERN_CHARACTERS_MAX = 256

_ID = re.compile(ID_PATTERN)
_COLLECTIONS = ("tenants", "namespaces", "topics")


class Right(StrEnum):
    """Rights that a grant can confer."""

    READ = "read"
    WRITE = "write"
    SHARE = "share"
    ADMIN = "admin"
    METRICS = "metrics"


DATA_RIGHTS = (Right.READ, Right.WRITE, Right.SHARE)
"""Rights that each allow to see a topic and its description."""


@dataclass(frozen=True, slots=True, order=True)
class Grant:
    """A right on all names that match a pattern.

    Args:
        right: The right.
        pattern: Full name of a topic or namespace, or the beginning of one with a trailing `*`;
            `*` alone matches every name.
    """

    right: Right
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `RIGHT=PATTERN`.

        A pattern without a slash, except `*`, is a topic of the default namespace, as elsewhere;
        `metrics` alone means `metrics=*`.

        Raises:
            InvalidArgument: There is no such right.
            InvalidName: The pattern cannot match any name.
        """
        name, found, pattern = text.partition("=")
        if text == Right.METRICS:
            found, pattern = "=", EVERYTHING
        if not found or name not in set(Right):
            raise InvalidArgument(
                f"{text[:80]!r} is not a grant: expected RIGHT=PATTERN with one of "
                f"{', '.join(Right)}"
            )
        return cls(Right(name), _full_pattern(pattern))

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches a full name, `EVERYTHING` or `SOMEWHERE`."""
        if name == SOMEWHERE:
            return True
        if self.pattern.endswith("*"):
            return name.startswith(self.pattern[:-1])
        return name == self.pattern

    def reaches_into(self, namespace: NamespaceName) -> bool:
        """Return whether the pattern matches a namespace, or a possible topic of it."""
        name = str(namespace)
        return self.matches(name) or self.pattern.startswith(f"{name}/")

    def __str__(self) -> str:
        """Return `RIGHT=PATTERN`."""
        return f"{self.right}={self.pattern}"


def _full_pattern(pattern: str) -> str:
    """Return a pattern in full form.

    Raises:
        InvalidName: The pattern cannot match any full name.
    """
    if pattern == EVERYTHING:
        return pattern
    prefix = pattern.removesuffix("*")
    if prefix and "/" not in prefix and prefix != "tenants":
        return f"{TopicName.parse(prefix)}{pattern[len(prefix) :]}"
    if len(pattern) > PATTERN_CHARACTERS_MAX or not (
        _is_beginning(prefix) if pattern.endswith("*") else _is_name(pattern)
    ):
        raise InvalidName(
            f"{pattern[:80]!r} matches no name: expected tenants/T/namespaces/N/topics/X, "
            "tenants/T/namespaces/N, or the beginning of one with a trailing *"
        )
    return pattern


def _is_name(text: str) -> bool:
    for kind in (TopicName, NamespaceName):
        try:
            kind.parse(text)
        except InvalidName:
            continue
        return True
    return False


def _is_beginning(text: str) -> bool:
    """Return whether a text can be the beginning of a topic's full name."""
    segments = text.split("/")
    if len(segments) > 2 * len(_COLLECTIONS):
        return False
    for index, segment in enumerate(segments):
        is_last = index == len(segments) - 1
        if index % 2:
            if _ID.fullmatch(segment) is None and not (is_last and not segment):
                return False
        elif segment != (wanted := _COLLECTIONS[index // 2]) and not (
            is_last and wanted.startswith(segment)
        ):
            return False
    return True
