"""Rules of names, nodes, groups and folios, and of what may be there already, for every store."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pyarrow as pa

from wings_core.arrow_types import fields_of
from wings_core.contracts.messages import shortened
from wings_core.errors import (
    AlreadyExists,
    GroupNotFound,
    Internal,
    InvalidArgument,
    ResourceExhausted,
)
from wings_core.metadata.interfaces import (
    NODE_LEASE_SECONDS_MAX,
    OFFSET_MAX,
    RETIRE_MAX,
    Groups,
)
from wings_core.model import INLINE_SUFFIX, InlineFolio, Node, ShareGroup, Topic
from wings_core.partitions import Partition, is_longer
from wings_core.type_names import type_name

if TYPE_CHECKING:
    from wings_core.arrow_types import ArrowField

ID_BYTES_MAX = 256
"""The longest producer id and the longest consumer's name, in UTF-8."""

DELETED_KEPT_US = 600 * 1_000_000
"""How long the UUID of a deleted and purged topic is remembered: much longer than any client
retries its creation."""


def check_id(what: str, text: str) -> None:
    """Check that an id or a name that a client chose can be stored.

    Raises:
        InvalidArgument: It is not text (see `check_text`), or longer than `ID_BYTES_MAX`.
    """
    check_text(what, text, ID_BYTES_MAX)


def check_text(what: str, text: str, bytes_max: int | None = None) -> None:
    """Check that every store can keep a name as text.

    Args:
        what: Names it in the error.
        text: The name.
        bytes_max: The longest, in UTF-8; None: any.

    Raises:
        InvalidArgument: It holds NUL, which text in PostgreSQL cannot, or half a surrogate pair,
            which JSON can carry and UTF-8 cannot; or it is too long.
    """
    if "\0" in text:
        raise InvalidArgument(f"{what} {text[:80]!a} holds the character NUL")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {text[:80]!a} is not valid Unicode") from None
    if bytes_max is not None and size > bytes_max:
        raise InvalidArgument(f"{what} has {size} bytes, at most {bytes_max} are allowed")


def check_partition(partition: Partition, bytes_max: int) -> None:
    """Check that a store of metadata can keep a partition value.

    Args:
        partition: Its canonical JSON.
        bytes_max: The most that the store takes, in UTF-8.

    Raises:
        InvalidArgument: It is longer.
    """
    if is_longer(partition, bytes_max):
        raise InvalidArgument(
            f"partition value {partition:.40}… has {len(partition.encode())} bytes as JSON, "
            f"metadata here takes at most {bytes_max}"
        )


def check_publish(writer: str, batch: int, stages: Iterable[str] = ()) -> None:
    """Check the writer, the batch number and the ids of stages of a publish or abort.

    Raises:
        InvalidArgument: A writer or a stage that is not text or is too long, or a negative batch.
    """
    check_id("writer", writer)
    if not 0 <= batch <= OFFSET_MAX:
        raise InvalidArgument(f"{batch} is not a batch: expected 0 to {OFFSET_MAX}")
    for stage in stages:
        check_text("the stage", stage)


def chosen_uuid(given: str | None) -> str:
    """Return the UUID of a new namespace or topic, in lower case: `given`, or a random one.

    Raises:
        InvalidArgument: `given` is not a UUID.
    """
    if given is None:
        return str(uuid4())
    try:
        return str(UUID(given))
    except ValueError:
        raise InvalidArgument(f"{given[:80]!r} is not a UUID") from None


def existing_topic(
    topic: Topic, schema: pa.Schema, partition_key: str | None, *, if_not_exists: bool
) -> Topic:
    """Return an existing topic of the name to be created, where the request allows it.

    Raises:
        AlreadyExists: Without `if_not_exists`, or the schema or the partition key differ.
    """
    if not if_not_exists:
        raise AlreadyExists(f"there is a topic {topic.name} already")
    # A schema that has grown since is the topic's, for producers of its earlier versions too.
    if topic.partition_key != partition_key:
        raise AlreadyExists(
            f"there is a topic {topic.name} already, with the partition key "
            f"{topic.partition_key!r}, not {partition_key!r}"
        )
    if not any(each.equals(schema) for each in topic.schemas):
        raise AlreadyExists(
            f"there is a topic {topic.name} already, with another schema: "
            f"{_difference(topic.schema, schema)}"
        )
    return topic


def _difference(there: pa.Schema, wanted: pa.Schema) -> str:
    """Return a sentence about the first column in which two schemas differ."""
    for field in fields_of(wanted):
        if field.name not in there.names:
            return f"it has no column {field.name!r:.80}; alter the schema to add it"
        has = there.field(field.name)
        if not has.equals(field):
            return (
                f"its column {field.name!r:.80} is {_described(has)}, not {_described(field)}; "
                "alter the schema to change it"
            )
    for name in there.names:
        if name not in wanted.names:
            return f"it also has the column {name!r:.80}"
    return f"its columns are in the order {', '.join(there.names):.200}"


def _described(field: "ArrowField") -> str:
    return f"{type_name(field.type):.200}{'' if field.nullable else ' not null'}"


GROUPS_PER_TOPIC_MAX = 1_000
"""The most groups of one topic."""


def check_name(name: str) -> None:
    """Check the name of a group.

    Raises:
        InvalidArgument: It is empty, longer than 256 bytes or not text; see `check_id`.
    """
    if not name:
        raise InvalidArgument("the group's name must not be empty")
    check_id("the group's name", name)


def check_group_room(topic: Topic, groups: int) -> None:
    """Check that a topic with so many groups may have another.

    Raises:
        ResourceExhausted: It has `GROUPS_PER_TOPIC_MAX`.
    """
    if groups >= GROUPS_PER_TOPIC_MAX:
        raise ResourceExhausted(f"{topic.name} has {groups} groups, which is the most it may have")


def existing_group(group: ShareGroup, uuid: str | None, *, if_not_exists: bool) -> ShareGroup:
    """Return an existing group of the name to be created, where the request allows it.

    Args:
        group: The existing one.
        uuid: UUID of the new group: the same where the request is a retry.
        if_not_exists: Whether any group of the name will do.

    Raises:
        AlreadyExists: The UUIDs differ, and `if_not_exists` is false.
    """
    if not if_not_exists and group.uuid != uuid:
        raise AlreadyExists(
            shortened(f"there is a group {group.name!r:.80} of {group.topic.name} already")
        )
    return group


def no_group(topic: Topic, name: str) -> GroupNotFound:
    """Return the error of a group that does not exist."""
    return GroupNotFound(shortened(f"{topic.name} has no group {name!r:.80}"))


def current_group(groups: Groups, group: ShareGroup) -> ShareGroup:
    """Return a group with its present configuration.

    Raises:
        GroupNotFound: It was deleted, though there may be another of its name.
        TopicNotFound: Its topic was deleted.
    """
    found = groups.get(group.topic, group.name)
    if found.uuid != group.uuid:
        raise no_group(group.topic, group.name)
    return found


def check_node(node: Node, seconds: float) -> None:
    """Check a node to be registered.

    Raises:
        InvalidArgument: Its id or address is empty, too long or not text, or the lease is out of
            range.
    """
    check_id("a node's id", node.id)
    check_id("a node's address", node.address)
    check_id("a node's HTTP address", node.http)
    check_id("a node's address of Kafka", node.kafka)
    if not node.id or not node.address:
        raise InvalidArgument("a node has an id and an address")
    if not 0 < seconds <= NODE_LEASE_SECONDS_MAX:
        raise InvalidArgument(
            f"a node's lease of {seconds:g} s is out of range: at most "
            f"{NODE_LEASE_SECONDS_MAX:g} s are allowed"
        )


RETIRED_KEPT_US = 7 * 24 * 3600 * 1_000_000
"""A retired folio is remembered for so long, in microseconds: far longer than a commit can be on
its way, also to a service or from a node that was stopped meanwhile."""

INLINE_FOLIO_BYTES_MAX = 1024 * 1024
"""The most bytes of a folio that metadata keeps."""

FOLIO_NAME_BYTES_MAX = 256

RETIRED_CONSTRAINT = "folios_retired_for_good"
"""The constraint that keeps a retired folio without pages, by whose name its errors are known.

A folio is fenced before it is deleted: a retired one stays as a row of the table of folios, with
the time. A later commit that counts its pages there violates the constraint, and fails as a whole.
"""


def check_retired(folios: Sequence[str]) -> None:
    """Check that folios can be retired in one transaction.

    Raises:
        InvalidArgument: There are more than `RETIRE_MAX`.
    """
    if len(folios) > RETIRE_MAX:
        raise InvalidArgument(
            f"{len(folios)} folios cannot be retired at once, at most {RETIRE_MAX} can"
        )


def check_inline(inline: InlineFolio) -> None:
    """Check that metadata can keep a folio.

    Raises:
        InvalidArgument: It cannot.
    """
    name = inline.name
    if not (name.isascii() and len(name) <= FOLIO_NAME_BYTES_MAX and "\0" not in name):
        check_text("an inline folio", name, FOLIO_NAME_BYTES_MAX)
    if not name.endswith(INLINE_SUFFIX):
        raise InvalidArgument(f"an inline folio's name ends in {INLINE_SUFFIX}, not {name!r}")
    if len(inline.data) > INLINE_FOLIO_BYTES_MAX:
        raise InvalidArgument(
            f"an inline folio has {len(inline.data)} bytes, at most {INLINE_FOLIO_BYTES_MAX} can be"
        )


def refers_to_retired() -> Internal:
    """Return the error of a flush into a retired folio, whose pages are, or will be, deleted."""
    return Internal(
        "the flush came too late: its folio was retired meanwhile, nothing of it is committed"
    )
