"""The body of `commit-offsets`, as columns and one text, for commits of ten thousand offsets.

Our own client writes them for one topic in one form. Such a text is parsed without an object for
each entry: it is split into a list of values, and accepted if formatting them again yields the same
text. All others go through the models.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import repeat
from json.encoder import encode_basestring
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NotRequired,  # pydantic does not accept that of `typing` before Python 3.12.
    Self,
    cast,
)

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, JsonValue
from pydantic_core import CoreSchema, core_schema, from_json
from typing_extensions import TypedDict

from wings_core.contracts.actions import OFFSETS_MAX, ActionBody, FencedOffsets
from wings_core.contracts.messages import (
    IDENTIFIER_CHARACTERS_MAX,
    INT64_MAX,
    JSON_BYTES_MAX,
    OffsetNumber,
    dump,
)
from wings_core.errors import InvalidArgument


class OffsetEntry(TypedDict):
    """A consumer's position in one partition."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # pyright: ignore[reportGeneralTypeIssues] - documented by pydantic

    topic: str
    partition: NotRequired[JsonValue]
    offset: OffsetNumber
    """Next offset to read."""


_Entries = Annotated[tuple[OffsetEntry, ...], Field(strict=False, max_length=OFFSETS_MAX)]


class Offsets(NamedTuple):
    """A consumer's positions, as columns."""

    topics: Sequence[str]
    partitions: Sequence[JsonValue]
    numbers: Sequence[int]
    """Next offsets to read."""
    text: bytes
    """All entries as a JSON list."""

    @classmethod
    def of(cls, entries: tuple[OffsetEntry, ...]) -> Self:
        """Convert entries to columns."""
        return cls(
            [entry["topic"] for entry in entries],
            [entry.get("partition") for entry in entries],
            [entry["offset"] for entry in entries],
            dump(entries),
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a schema that validates a list of entries and converts it."""
        entries = handler.generate_schema(_Entries)
        return core_schema.no_info_after_validator_function(cls.of, entries)


class CommitOffsets(FencedOffsets, ActionBody):
    """The body of `commit-offsets`, and its response."""

    offsets: Offsets

    @classmethod
    def parse(cls, raw: bytes, error: type[InvalidArgument], what: str) -> Self:
        """Parse a body; see `Message.parse`."""
        head = _HEAD.match(raw, 0, JSON_BYTES_MAX)
        tail = _TAIL.fullmatch(raw, raw.rfind(b"}]"))
        if head is not None and tail is not None and len(raw) <= JSON_BYTES_MAX:
            between = b'}, {"topic": %s, "partition": ' % head[2]
            values = raw[head.end() : tail.start()].replace(between, b",")
            try:
                consumer, topic = head[1].decode(), head[2].decode()
                found = cast("list[Any]", from_json(b"[%s]" % values.replace(_OFFSET, b",")))
                usual = cls._usual(consumer[1:-1], topic[1:-1], found[::2], found[1::2])
                if usual is not None and tail[1] is not None:
                    member = {"member": tail[1].decode(), "member_epoch": int(tail[2])}
                    usual = usual.model_copy(update=member)
            except ValueError:
                usual = None  # The models report the problem.
            if usual is not None and usual.to_bytes() == raw:
                return usual
        return super().parse(raw, error, what)

    @classmethod
    def of_topic(
        cls, consumer: str, topic: str, offsets: Mapping[Any, int]
    ) -> "CommitOffsets | None":
        """Return offsets of a topic's partitions; None if they must go through the models.

        Args:
            consumer: Name of the consumer.
            topic: Name of the topic.
            offsets: Next offsets to read, by partition value in its wire form.
        """
        return cls._usual(consumer, topic, list(offsets), list(offsets.values()))

    @classmethod
    def _usual(
        cls, consumer: str, topic: str, partitions: list[Any], numbers: list[Any]
    ) -> Self | None:
        """Return offsets of a topic; None if they are invalid, or have another form."""
        kinds = set(map(type, partitions))
        if (
            not 0 < len(partitions) == len(numbers) <= OFFSETS_MAX
            or kinds not in _KINDS
            or set(map(type, numbers)) != {int}
            or min(numbers) < 0
            or max(numbers) > INT64_MAX
            or not 0 < len(consumer) <= IDENTIFIER_CHARACTERS_MAX
        ):
            return None
        entry = f'{{"topic": {encode_basestring(topic)}, "partition": '.replace("%", "%%")
        texts = partitions if kinds == {int} else map(encode_basestring, partitions)
        values = tuple(value for pair in zip(texts, numbers, strict=True) for value in pair)
        text = ", ".join(repeat(entry + '%s, "offset": %d}', len(numbers))) % values
        try:
            offsets = Offsets([topic] * len(numbers), partitions, numbers, f"[{text}]".encode())
        except UnicodeEncodeError:
            return None
        return cls.model_construct(consumer=consumer, offsets=offsets)

    def to_bytes(self) -> bytes:
        """Return the message as JSON, the inverse of `parse`."""
        consumer, offsets = dump(self.consumer), self.offsets.text
        if self.member is None:
            return b'{"consumer": %s, "offsets": %s}' % (consumer, offsets)
        return b'{"consumer": %s, "offsets": %s, "member": %s, "member_epoch": %d}' % (
            *(consumer, offsets, dump(self.member)),
            self.member_epoch,
        )


_HEAD = re.compile(
    rb'\{"consumer": ("[^"\\]+"), "offsets": \[\{"topic": ("[^"\\]+"), "partition": '
)
"""Pattern of the beginning of the usual text."""

_TAIL = re.compile(
    rb'\}\](?:, "member": "([^"\\]{1,%d})", "member_epoch": ([1-9][0-9]{0,17}))?\}'
    % IDENTIFIER_CHARACTERS_MAX
)
"""Pattern of the end of the usual text."""

_OFFSET = b', "offset": '
"""Separator of the usual text. No JSON string contains it, since it has quotes."""

_KINDS = ({int}, {str})
