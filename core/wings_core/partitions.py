"""Partition values: the JSON scalar that names a partition of a topic, and its slot.

On the wire a partition is a JSON value of the key column's kind. Internally it is that value's
canonical JSON text (`Partition`), a hashable string: metadata stores it, caches use it as a key,
and the column `__partition` contains it. A topic without a key has the single partition `null`.

A consumer group's partitions are assigned to its members by slots. A partition belongs to one slot
for good, so that an assignment also covers partitions born later, and stays short however many
partitions a topic has.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Any, NewType, TypeVar, cast

import pyarrow as pa

from wings_core.errors import (
    InvalidArgument,
    PartitionNotAllowed,
    PartitionRequired,
    PartitionTypeMismatch,
)

Partition = NewType("Partition", str)
"""The canonical JSON text of a partition value, like `7`, `"JFK"`, `true` or `null`."""

T = TypeVar("T")

UNPARTITIONED = Partition("null")

JsonScalar = str | int | float | bool | None

_decode = json.JSONDecoder().raw_decode
"""Decoder in half the time of `json.loads`, which skips white space around the value."""

VALUE_BYTES_MAX = 64 * 1024
"""Longest partition value, in bytes of JSON text in UTF-8."""

_PLAIN = r'[^"\\\x00-\x1f\ud800-\udfff]*'
_ESCAPE = r'\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))'
_CANONICAL = re.compile(rf'null|true|false|0|-?[1-9][0-9]{{0,19}}|"{_PLAIN}(?:{_ESCAPE}{_PLAIN})*"')
"""Pattern of what `json.dumps` writes for null, booleans, 64-bit integers and strings."""


def is_partition_key_type(data_type: pa.DataType) -> bool:
    """Return whether a column of this type can be a partition key."""
    return (
        pa.types.is_integer(data_type)
        or _is_text(data_type)
        or _is_binary(data_type)
        or pa.types.is_boolean(data_type)
    )


def partition_of(value: object, key_type: pa.DataType | None) -> Partition:
    """Validate a value and convert it to a partition.

    Args:
        value: Any JSON value; None for an absent one.
        key_type: The type of the topic's key column, None for a topic without a key.

    Raises:
        PartitionNotAllowed: A value for a topic without a key.
        PartitionRequired: No value for a topic with a key.
        PartitionTypeMismatch: The value is not of the key's kind (objects, lists and fractions
            never are); values are not converted.
    """
    if key_type is None:
        if value is not None:
            raise PartitionNotAllowed(
                f"the topic has no partition key, so it takes no partition value; got {value!r:.80}"
            )
        return UNPARTITIONED
    if value is None:
        raise PartitionRequired(f"the topic is partitioned: give a partition value ({key_type})")
    problem = _problem(value, key_type)
    if problem is not None:
        raise PartitionTypeMismatch(f"partition value {value!r:.80}: {problem}")
    return _bounded(_canonical(value))


def partitions_of(values: Sequence[object], key_type: pa.DataType | None) -> list[Partition]:
    """Validate values and convert them to partitions; `partition_of` in bulk.

    Raises: The errors of `partition_of`, for the first invalid value.
    """
    kinds = set(map(type, values))
    if key_type is not None and kinds == {int} and pa.types.is_integer(key_type):
        numbers = cast("Sequence[int]", values)
        # If the least and the greatest are valid, all are.
        if _problem(min(numbers), key_type) is None and _problem(max(numbers), key_type) is None:
            return cast("list[Partition]", list(map(str, numbers)))
    if key_type is not None and kinds == {str} and _is_text(key_type):
        texts = cast("Sequence[str]", values)
        if _problem("".join(texts), key_type) is None:
            return [_bounded(Partition(encode_basestring(text))) for text in texts]
    return [partition_of(value, key_type) for value in values]


def any_partition_value(key_type: pa.DataType | None) -> JsonScalar:
    """Return an arbitrary valid value of a key, for requests about the topic as a whole."""
    if key_type is None:
        return None
    if pa.types.is_boolean(key_type):
        return False
    if pa.types.is_integer(key_type):
        return 0
    width = key_type.byte_width if pa.types.is_fixed_size_binary(key_type) else 0
    return base64.b64encode(bytes(width)).decode("ascii")


def partition_of_value(value: JsonScalar) -> Partition:
    """Return the partition of a value known to be valid, for example from a response."""
    return _canonical(value)


def canonical_partition(text: str) -> Partition:
    """Validate canonical JSON text from another process and return its partition.

    Raises:
        InvalidArgument: `text` is not canonical JSON of a partition value, or longer than
            `VALUE_BYTES_MAX`.
    """
    if _CANONICAL.fullmatch(text) is None:
        raise InvalidArgument(f"{text[:80]!r} is not the canonical JSON of a partition value")
    partition = Partition(text)
    if is_longer(partition, VALUE_BYTES_MAX):
        raise InvalidArgument(f"partition value {text:.40}…: more than {VALUE_BYTES_MAX} bytes")
    return partition


def partition_value(partition: Partition) -> JsonScalar:
    """Return the JSON scalar of a partition (binary as base64)."""
    return _decode(partition)[0]


def partition_key_value(partition: Partition, key_type: pa.DataType) -> JsonScalar | bytes:
    """Return the value of the key column in a partition's rows."""
    value = partition_value(partition)
    return base64.b64decode(str(value)) if _is_binary(key_type) else value


def partitions_of_keys(keys: "pa.Array[Any]") -> list[Partition]:
    """Return the partition of each value of a key column without nulls; `partition_of` in bulk.

    Raises:
        PartitionTypeMismatch: A value is too long to name a partition.
    """
    values = cast("list[Any]", keys.to_pylist())
    if pa.types.is_integer(keys.type):
        return cast("list[Partition]", list(map(str, values)))
    if pa.types.is_boolean(keys.type):
        return [Partition("true" if value else "false") for value in values]
    if _is_binary(keys.type):
        values = [base64.b64encode(value).decode("ascii") for value in values]
    return [_bounded(Partition(encode_basestring(value))) for value in values]


def partition_sort_key(partition: Partition) -> tuple[bool, int | str | bytes]:
    """Return a key that sorts the partitions of one topic by value."""
    if partition[0] in "-0123456789":
        return (True, int(partition))  # Most keys are integers, whose JSON `int` parses.
    value = partition_value(partition)
    if isinstance(value, (bool, int)):
        return (True, int(value))
    return (False, value if isinstance(value, str) else "")


def sorted_by_partition(items: Sequence[T], partitions: Iterable[Partition]) -> list[T]:
    """Return items sorted by the values of their partitions, which belong to one topic."""
    known = list(partitions)
    try:
        keys: Sequence[Any] = list(map(int, known))
    except ValueError:
        keys = list(map(partition_sort_key, known))
    return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


def _canonical(value: object) -> Partition:
    # A faster equivalent of the code below, which constructs an encoder for each value.
    if type(value) is int:
        return Partition(str(value))
    if type(value) is str:
        return Partition(encode_basestring(value))
    return Partition(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def is_longer(partition: Partition, bytes_max: int) -> bool:
    """Return whether a partition value has more than `bytes_max` bytes as JSON in UTF-8."""
    # Most are far shorter than any bound, so that encoding them is not needed.
    return len(partition) * 4 > bytes_max and len(partition.encode()) > bytes_max


def _bounded(partition: Partition) -> Partition:
    if is_longer(partition, VALUE_BYTES_MAX):
        raise PartitionTypeMismatch(
            f"partition value {partition:.40}…: longer than {VALUE_BYTES_MAX} bytes as JSON"
        )
    return partition


def _is_text(data_type: pa.DataType) -> bool:
    return pa.types.is_string(data_type) or pa.types.is_large_string(data_type)


def _is_binary(data_type: pa.DataType) -> bool:
    return (
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )


def _problem(value: object, key_type: pa.DataType) -> str | None:
    """Return why a value is not of the key's kind; None if it is."""
    if pa.types.is_boolean(key_type):
        return None if isinstance(value, bool) else "expected true or false"
    if pa.types.is_integer(key_type):
        if not isinstance(value, int) or isinstance(value, bool):
            return f"expected an integer ({key_type})"
        signed = pa.types.is_signed_integer(key_type)
        bits = key_type.bit_width
        low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
        return None if low <= value < high else f"out of the range of {key_type}"
    if not isinstance(value, str):
        return f"expected a string ({key_type})"
    if _is_binary(key_type):
        return _binary_problem(value, key_type)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "not valid Unicode"
    return None


def _binary_problem(value: str, key_type: pa.DataType) -> str | None:
    try:
        decoded = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return "expected base64"
    if base64.b64encode(decoded).decode("ascii") != value:
        return "expected base64 in its canonical form"
    if pa.types.is_fixed_size_binary(key_type) and len(decoded) != key_type.byte_width:
        return f"expected {key_type.byte_width} bytes"
    return None


SLOTS = 256
"""Slots of a topic with a key; one without has slot 0 alone."""

SLOTS_MAX = 10_000
"""Most slots, and numbered partitions, of a topic with numbered partitions."""

HASHED_MAX = 65_536
"""Partitions whose slot is remembered: each chunk of a read of slots names it for each of its
partitions."""

Slots = int
"""A set of slots as a bit mask: bit n is slot n."""


def slot_of(partition: Partition, *, numbered: bool = False) -> int:
    """Return the slot of a partition.

    It is XXH3 (64 bits, seed 0) of the value's JSON text in UTF-8, modulo `SLOTS`; of a topic with
    numbered partitions it is the number.
    """
    if numbered:
        return int(partition)
    return 0 if partition == UNPARTITIONED else _hashed(partition)


@lru_cache(HASHED_MAX)
def _hashed(partition: Partition) -> int:
    from xxhash import xxh3_64_intdigest  # A client alone has none, and takes slots as given.

    return xxh3_64_intdigest(partition.encode()) % SLOTS


def first_slots(count: int) -> Slots:
    """Return the mask of the first slots."""
    return (1 << count) - 1


def mask_of(slots: Iterable[int]) -> Slots:
    """Return the mask of slot numbers."""
    mask = 0
    for slot in slots:
        mask |= 1 << slot
    return mask


def slots_in(mask: Slots) -> list[int]:
    """Return the slot numbers of a mask, in ascending order."""
    found: list[int] = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found
