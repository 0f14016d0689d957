"""The body of `commit-offsets`: a commit of ten thousand offsets is columns, and one text.

Our own client writes all of them for one topic and in one form. Such a text is read without an
object for each entry: taken apart as a list of values, and known to be that form when the same text
is written of them again. All others go through the models.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import repeat
from json.encoder import encode_basestring
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NotRequired,  # Of `typing`, pydantic wants Python 3.12's.
    Self,
    cast,
)

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, JsonValue
from pydantic_core import CoreSchema, core_schema, from_json
from typing_extensions import TypedDict

from wings_core.contracts.actions import ActionBody
from wings_core.contracts.messages import (
    IDENTIFIER_CHARACTERS_MAX,
    INT64_MAX,
    JSON_BYTES_MAX,
    Identifier,
    OffsetNumber,
    dump,
)
from wings_core.errors import InvalidArgument

OFFSETS_MAX = 10_000
"""The most entries of one `commit-offsets`."""


class OffsetEntry(TypedDict):
    """A consumer's position in one partition."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # pyright: ignore[reportGeneralTypeIssues] - pydantic's own way

    topic: str
    partition: NotRequired[JsonValue]
    offset: OffsetNumber
    """The next offset to read."""


_Entries = Annotated[tuple[OffsetEntry, ...], Field(strict=False, max_length=OFFSETS_MAX)]


class Offsets(NamedTuple):
    """A consumer's positions, as columns."""

    topics: Sequence[str]
    partitions: Sequence[JsonValue]
    numbers: Sequence[int]
    """The next offsets to read."""
    text: bytes
    """All of them as JSON, a list."""

    @classmethod
    def of(cls, entries: tuple[OffsetEntry, ...]) -> Self:
        """Return entries as columns."""
        return cls(
            [entry["topic"] for entry in entries],
            [entry.get("partition") for entry in entries],
            [entry["offset"] for entry in entries],
            dump(entries),
        )

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a schema that validates a list of entries and makes this of it."""
        entries = handler.generate_schema(_Entries)
        return core_schema.no_info_after_validator_function(cls.of, entries)


class CommitOffsets(ActionBody):
    """The body of `commit-offsets`, and its answer."""

    consumer: Identifier
    offsets: Offsets

    @classmethod
    def parse(cls, raw: bytes, error: type[InvalidArgument], what: str) -> Self:
        """Parse a body; see `Message.parse`."""
        head = _HEAD.match(raw, 0, JSON_BYTES_MAX)
        if head is not None and len(raw) <= JSON_BYTES_MAX:
            between = b'}, {"topic": %s, "partition": ' % head[2]
            values = raw[head.end() : -len("}]}")].replace(between, b",")
            try:
                consumer, topic = head[1].decode(), head[2].decode()
                found = cast("list[Any]", from_json(b"[%s]" % values.replace(_OFFSET, b",")))
                usual = cls._usual(consumer[1:-1], topic[1:-1], found[::2], found[1::2])
            except ValueError:
                usual = None  # The models say what is wrong.
            if usual is not None and usual.to_bytes() == raw:
                return usual
        return super().parse(raw, error, what)

    @classmethod
    def of_topic(
        cls, consumer: str, topic: str, offsets: Mapping[Any, int]
    ) -> "CommitOffsets | None":
        """Return offsets of partitions of a topic; None where they are to go through the models.

        Args:
            consumer: Its name.
            topic: The topic's.
            offsets: The next to read, by partition value in its wire form.
        """
        return cls._usual(consumer, topic, list(offsets), list(offsets.values()))

    @classmethod
    def _usual(
        cls, consumer: str, topic: str, partitions: list[Any], numbers: list[Any]
    ) -> Self | None:
        """Return offsets of a topic; None where they are not valid, or of another form."""
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
        """Return the message as JSON, from which `parse` makes an equal one."""
        return b'{"consumer": %s, "offsets": %s}' % (dump(self.consumer), self.offsets.text)


_HEAD = re.compile(
    rb'\{"consumer": ("[^"\\]+"), "offsets": \[\{"topic": ("[^"\\]+"), "partition": '
)
"""Of the usual text."""

_OFFSET = b', "offset": '
"""Between two values: no text that is JSON has this in a string, as it has quotes."""

_KINDS = ({int}, {str})
