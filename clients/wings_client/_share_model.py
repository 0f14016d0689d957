"""The results of the calls on share groups, and rows of a delivery as ranges of offsets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, Self, cast

import pyarrow as pa
from pydantic import AfterValidator, Field, JsonValue

from wings_client._model import Moment
from wings_client._results import BatchViews
from wings_client.arrow import RecordBatch
from wings_core.contracts.share import AcquiredChunk
from wings_core.errors import InvalidArgument
from wings_core.partitions import JsonScalar

SYSTEM_COLUMNS = ("__offset", "__timestamp", "__partition", "__delivery_count", "__lease")


class ArrayLike(Protocol):
    """An array of pyarrow, to checkers that do not know pyarrow either."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        """Export it by Arrow's PyCapsule interface."""
        ...


Rows = int | slice | Iterable[int] | Iterable[bool] | ArrayLike | None
"""Rows of a delivery: one by its index, a slice, indices, a mask as long as the delivery; None: all
of them. Indices count from 0; negative ones from the end."""

OffsetRange = tuple[int, int]
"""Offsets, both ends inclusive."""


@dataclass(frozen=True, slots=True)
class SharePartition:
    """The state of a share group in a partition."""

    partition: JsonScalar
    """The partition value; of a binary key, in base64."""
    start_offset: int
    """The first offset that is not finished."""
    in_flight: int
    """Messages that members hold now."""
    lag: int
    """Messages that are not finished, including those in flight."""


@dataclass(frozen=True, slots=True)
class ShareGroup:
    """A share group of a topic."""

    name: Annotated[str, Field(validation_alias="group")]
    topic: str
    """Full: `tenants/T/namespaces/N/topics/X`."""
    config: Mapping[str, JsonValue]
    partitions: tuple[SharePartition, ...] = ()
    """Partitions by value; none in a list of groups."""


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member that holds messages."""

    name: Annotated[str, Field(validation_alias="member")]
    messages: int
    """How many it holds."""
    since: Moment
    """Time of its oldest hold."""


@dataclass(frozen=True, slots=True)
class ShareHold:
    """Messages `[first, last]` of a partition that a member holds."""

    partition: JsonScalar
    first: int
    last: int
    member: str
    delivery_count: int
    since: Moment
    until: Moment
    """When its lock ends, unless it is renewed."""


@dataclass(frozen=True, slots=True)
class OldestMessage:
    """The message that a group has left unfinished for longest."""

    partition: JsonScalar
    offset: int
    timestamp: Moment
    age_seconds: Annotated[
        float, Field(validation_alias="age_ms"), AfterValidator(lambda age_ms: age_ms / 1_000)
    ]


@dataclass(frozen=True, slots=True)
class ShareMembers:
    """Members that work on a share group, on any node."""

    lag: int
    in_flight: int
    oldest: OldestMessage | None
    """None: all is finished."""
    members: tuple[ShareMember, ...]
    """Members that hold something, the one first that has held it for longest."""
    holds: tuple[ShareHold, ...]
    """Ranges that are held, the longest first; of very many, the first."""
    holds_left_out: int


@dataclass(frozen=True, slots=True)
class Redriven:
    """The result of a redrive."""

    redriven: int
    """Dead letters republished."""
    already_redriven: int
    """Messages republished by an earlier redrive."""
    without_payload: int
    failed: int
    """Messages whose topic was deleted, has other columns now, or refuses batches of their size."""
    failures: tuple[str, ...]
    """Why, for the first few."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Delivery(BatchViews):
    """Messages of one partition, locked for this member under one lease.

    Passes as a RecordBatch wherever Arrow's PyCapsule interface is taken: `pa.record_batch(it)`.
    """

    batch: RecordBatch
    """The topic's columns, then `__offset`, `__timestamp`, `__partition`, `__delivery_count` and
    `__lease`."""
    partition: JsonScalar
    """The partition value; of a binary key, in base64."""
    start_offset: int
    end_offset: int
    """Inclusive. Messages that retention removed are in the range and not in the batch."""
    lease: str
    delivery_count: int
    """Number of deliveries, this one included: 1 at the first."""
    lock_seconds: float
    """How long the lock lasts without a renewal."""
    in_order: bool = False
    """Whether the group is ordered, so that what follows in the partition waits for this."""
    is_last: bool = False
    """Whether the delivery is the last by the group's limit when the stream began, so that messages
    that are released become dead letters; False where no stream tells."""
    traces: Sequence[Mapping[str, str]] = ()
    """The W3C headers of the spans in which its messages were pushed, those that the server knows:
    for links of OpenTelemetry."""

    @classmethod
    def of(cls, batch: RecordBatch, chunk: AcquiredChunk, limit: int | None = None) -> Self:
        """Return the delivery of a chunk, as a server sent it, of a group with a limit."""
        return cls(
            batch,
            chunk.partition,
            chunk.start_offset,
            chunk.end_offset,
            chunk.lease,
            chunk.delivery_count,
            chunk.lock_duration_ms / 1000,
            chunk.in_order,
            limit is not None and chunk.delivery_count >= limit,
            chunk.traces,
        )

    @property
    def rows(self) -> RecordBatch:
        """The messages without system columns."""
        return self.batch.select(list(range(self.batch.num_columns - len(SYSTEM_COLUMNS))))

    @property
    def offsets(self) -> list[int]:
        """The offset of each row."""
        return cast("list[int]", self.batch.column("__offset").to_pylist())

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.batch.num_rows

    @property
    def _where(self) -> str:
        return (
            f"{len(self):,} rows, partition {self.partition!r}, offsets {self.start_offset} to "
            f"{self.end_offset}, delivery {self.delivery_count}"
        )

    def ranges(self, rows: Rows) -> list[OffsetRange]:
        """Return the offsets of some rows as ranges, in order.

        Raises:
            InvalidArgument: There are no such rows.
        """
        if rows is None:
            return [(self.start_offset, self.end_offset)]
        return merged(self._picked(rows))

    def _picked(self, rows: Any) -> list[int]:
        offsets = self.offsets
        try:
            if isinstance(rows, slice):
                return offsets[rows]
            if isinstance(rows, pa.Array):
                rows = rows.to_pylist()
            wanted = [rows] if isinstance(rows, int) else list(rows)
            if wanted and all(isinstance(each, bool) for each in wanted):
                if len(wanted) != len(offsets):
                    raise InvalidArgument(f"rows: a mask of {len(wanted)} for {len(offsets)} rows")
                return [offset for offset, picked in zip(offsets, wanted, strict=True) if picked]
            return [offsets[index] for index in wanted]
        except (IndexError, TypeError, ValueError):
            raise InvalidArgument(
                f"rows: there are {len(offsets)} rows; got {rows!r:.80}"
            ) from None


def merged(offsets: Iterable[int]) -> list[OffsetRange]:
    """Return offsets as the fewest ranges, in order."""
    return joined((offset, offset) for offset in {*offsets})


def joined(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return ranges that do not overlap as the fewest, in order."""
    found: list[OffsetRange] = []
    for first, last in sorted(ranges):
        if found and found[-1][1] + 1 == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def without(ranges: Iterable[OffsetRange], cut: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the difference of two lists of ranges, in order."""
    left = list(ranges)
    for first, last in cut:
        parts: list[OffsetRange] = []
        for start, end in left:
            if end < first or start > last:
                parts.append((start, end))
                continue
            if start < first:
                parts.append((start, first - 1))
            if end > last:
                parts.append((last + 1, end))
        left = parts
    return left


def common(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the intersection of two lists of ranges, in order."""
    ranges = list(ranges)
    return without(ranges, without(ranges, others))
