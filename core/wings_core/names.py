"""Names of tenants, namespaces and topics.

A topic's full name is `tenants/T/namespaces/N/topics/X`. A bare id names a topic of the default
namespace, or of a namespace given by the request.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from wings_core.errors import InvalidArgument, InvalidName

ID_PATTERN = r"[a-z][a-z0-9_-]{0,62}"
_ID = re.compile(ID_PATTERN)
_NAMESPACE = re.compile(rf"tenants/({ID_PATTERN})/namespaces/({ID_PATTERN})")
_TOPIC = re.compile(rf"tenants/({ID_PATTERN})/namespaces/({ID_PATTERN})/topics/({ID_PATTERN})")


NAMES_KEPT_MAX = 4_096
"""Most parsed names of topics cached."""

STAGE_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}"
_STAGE = re.compile(STAGE_PATTERN)


def _shown(text: object) -> str:
    """Quote a value, truncated for an error message."""
    quoted = repr(text)
    return quoted if len(quoted) <= 120 else quoted[:117] + "..."


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    """The name of a namespace: `tenants/T/namespaces/N`."""

    tenant: str
    namespace: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a full namespace name.

        Raises:
            InvalidName: The text is not `tenants/T/namespaces/N`.
        """
        match = _NAMESPACE.fullmatch(text)
        if match is None:
            raise InvalidName(
                f"{_shown(text)} is not a namespace name: expected tenants/T/namespaces/N "
                f"with ids like {ID_PATTERN}"
            )
        return cls(match[1], match[2])

    def topic(self, topic_id: str) -> "TopicName":
        """Return the name of the topic with this id in this namespace.

        Raises:
            InvalidName: The id does not match `[a-z][a-z0-9_-]{0,62}`.
        """
        if _ID.fullmatch(topic_id) is None:
            raise InvalidName(f"{_shown(topic_id)} is not a topic id: expected {ID_PATTERN}")
        return TopicName(self, topic_id)

    def __str__(self) -> str:
        """Return the full name."""
        return f"tenants/{self.tenant}/namespaces/{self.namespace}"


DEFAULT_NAMESPACE = NamespaceName("default", "default")


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """The name of a topic: `tenants/T/namespaces/N/topics/X`."""

    namespace: NamespaceName
    topic: str

    @classmethod
    def parse(cls, text: str, namespace: NamespaceName = DEFAULT_NAMESPACE) -> "TopicName":
        """Parse a full topic name, or a bare id of `namespace`.

        Raises:
            InvalidName: The text is neither.
        """
        if namespace is DEFAULT_NAMESPACE:
            return _parse_topic(text)
        return cls._parse(text, namespace)

    @classmethod
    def _parse(cls, text: str, namespace: NamespaceName) -> "TopicName":
        match = _TOPIC.fullmatch(text)
        if match is not None:
            return cls(NamespaceName(match[1], match[2]), match[3])
        if "/" in text:
            raise InvalidName(
                f"{_shown(text)} is not a topic name: expected tenants/T/namespaces/N/topics/X, "
                f"or a bare id, with ids like {ID_PATTERN}"
            )
        return namespace.topic(text)

    def __str__(self) -> str:
        """Return the full name."""
        return f"{self.namespace}/topics/{self.topic}"


@lru_cache(NAMES_KEPT_MAX)
def _parse_topic(text: str) -> TopicName:
    """Return `TopicName.parse(text)`, cached."""
    return TopicName._parse(text, DEFAULT_NAMESPACE)  # pyright: ignore[reportPrivateUsage] - of this module


def check_stage_id(text: str) -> str:
    """Return a stage id after validating it: 1 to 128 letters, digits and `._:-`.

    Raises:
        InvalidArgument: The text is not a stage id.
    """
    if _STAGE.fullmatch(text) is None:
        raise InvalidArgument(f"{_shown(text)} is not a stage id: expected {STAGE_PATTERN}")
    return text
