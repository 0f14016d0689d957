"""A partition's pages in their order: offsets, timestamps, bytes and tiers."""

from collections.abc import Iterator

from wings_core.check.report import Page, Problem
from wings_core.metadata.tiers import PageCounts
from wings_core.model import Location, PartitionState, TierState, Topic
from wings_core.partitions import Partition


class Walk:
    """Follows a partition page by page: are offsets, timestamps and bytes what they should be?"""

    def __init__(self, topic: Topic, state: PartitionState) -> None:
        self._topic = topic
        self._state = state
        self.next_offset = state.log_start_offset
        """Where the next page must begin."""
        self.is_sound = True
        """Whether there was no problem so far."""
        self._last_timestamp: int | None = None
        self._counts = PageCounts()

    @property
    def partition(self) -> Partition:
        """Whose pages they are."""
        return self._state.partition

    @property
    def tiers(self) -> list[TierState]:
        """What the pages amount to in each tier that has any, the hot one first."""
        return self._counts.tiers(self.partition)

    def step(self, location: Location) -> Iterator[Problem]:
        """Yield what is wrong with the next page's place in the log."""

        def wrong(message: str) -> Problem:
            self.is_sound = False
            return Page.of_location(self._topic, self._state.partition, location).problem(message)

        expected, start, end = self.next_offset, location.start_offset, location.end_offset
        first = self._last_timestamp is None
        if start > expected:
            yield self.problem("these offsets are in no page", expected, start - 1)
        elif start < expected and not (first and end >= expected):
            yield wrong(f"its offsets repeat those before {expected}")
        if end < start:
            yield wrong("its last offset is before its first")
        if end >= self._state.next_offset:
            yield wrong(f"its offsets reach past the log's end, {self._state.next_offset}")
        first_of_page = location.earliest_timestamp
        if self._last_timestamp is not None and first_of_page < self._last_timestamp:
            yield wrong(
                f"its timestamp {first_of_page} is before {self._last_timestamp}, "
                "that of the page before"
            )
        if location.timestamp < first_of_page:
            yield wrong(f"its timestamps begin at {first_of_page} and end at {location.timestamp}")
        self._last_timestamp = location.timestamp
        self._counts += PageCounts.of_locations([location])
        self.next_offset = max(expected, end + 1)

    def finish(self) -> Iterator[Problem]:
        """Yield what is wrong with the partition as a whole, after its last page."""
        state = self._state
        if not 0 <= state.log_start_offset <= state.next_offset:
            yield self.problem(
                f"the log cannot start at {state.log_start_offset} and end at {state.next_offset}"
            )
        if self.next_offset < state.next_offset:
            yield self.problem(
                "these offsets are in no page", self.next_offset, state.next_offset - 1
            )
        if self._counts.bytes != state.bytes:
            yield self.problem(f"the pages have {self._counts.bytes} bytes, not {state.bytes}")
        if self._last_timestamp is not None and self._last_timestamp != state.last_timestamp:
            yield self.problem(
                f"the last timestamp is {self._last_timestamp}, not {state.last_timestamp}"
            )

    def problem(
        self, message: str, start_offset: int | None = None, end_offset: int | None = None
    ) -> Problem:
        """Return a problem of this partition."""
        self.is_sound = False
        topic, partition = str(self._topic.name), self._state.partition
        return Problem(message, topic, partition, start_offset, end_offset)
