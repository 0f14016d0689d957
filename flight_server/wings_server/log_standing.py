"""The state of a log for overviews: at this moment, and samples of the last hour.

Large topics are read one by one, others as totals. Reading it has a bounded cost, except for one
statement over all partitions; for a large log the last state is cached for a few seconds.

Charts have a past when they are first drawn. Each process keeps samples of its own traffic, and of
the lag of consumers and share groups.
"""

import resource
import threading
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import structlog

from wings_core.errors import NotFound, Unavailable
from wings_core.log import Log
from wings_core.model import CommittedOffset, LargestTopics, ShareGroup, SharePartitionState
from wings_core.names import TopicName
from wings_core.partitions import Partition
from wings_core.share.progress import GroupCounts
from wings_core.times import now_us
from wings_core.traffic import TrafficCounts

TOPICS_MAX = 100
"""Most topics with series of their own; one less if others are summed."""

GROUPS_MAX = 1_000
"""Most share groups read for one scrape."""

CONSUMERS_MAX = 1_000
"""Most named consumers whose lag is computed for one scrape."""

SMALL = 10_000
"""Most topics and partitions of a log whose state is read for each scrape."""

KEPT_SECONDS = 5.0
"""Time for which the state of a larger log is cached."""

SAMPLE_SECONDS = 10.0
"""Time between two samples."""

SAMPLES_MAX = 360
"""Samples kept of a series: those of an hour."""

SERIES_MAX = 1_000
"""Most series, each up to 14 kB; beyond it, the one sampled longest ago is dropped."""

SAMPLED_TOPICS_MAX = 200
"""Topics sampled at a time: those with the latest traffic."""

LAG_COST_MAX = 0.01
"""Part of the time that looks at lag may take; a large log is looked at more rarely."""

_COLUMNS = {
    "traffic": ("rows_in", "bytes_in", "rows_out", "bytes_out"),
    "topic": ("rows_in", "bytes_in", "rows_out", "bytes_out"),
    "group": ("lag", "in_flight", "accepted", "redelivered", "dead_lettered"),
    "consumer": ("lag",),
    "process": ("cpu_ms", "memory_bytes", "errors", "faults"),
}
"""Names of the numbers of a sample, by the kind of its series."""

_STATM = Path("/proc/self/statm")

_PAGE_BYTES = resource.getpagesize()

_logger = structlog.get_logger("wings.history")


@dataclass(slots=True)
class LogStanding:
    """State of the log at one moment."""

    largest: LargestTopics
    ends: dict[TopicName, dict[Partition, tuple[int, int]]] = field(
        default_factory=dict[TopicName, dict[Partition, tuple[int, int]]]
    )
    """Start and next offsets of partitions of the largest topics, and of topics with consumers;
    those deleted meanwhile are missing."""
    lags: list[tuple[str, CommittedOffset, int]] = field(
        default_factory=list[tuple[str, CommittedOffset, int]]
    )
    """Offsets of named consumers, and the messages behind each that are still kept."""
    groups: list[tuple[ShareGroup, list[SharePartitionState]]] = field(
        default_factory=list[tuple[ShareGroup, list[SharePartitionState]]]
    )


class Standings:
    """Reader of a log's state. Thread-safe.

    Args:
        log: The log.
        clock: Returns monotonic seconds.
    """

    def __init__(self, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._kept: tuple[float, LogStanding] | None = None
        """Cached state and its time; replaced without a lock, so that it may be read twice."""

    def look(self) -> LogStanding:
        """Return the state of the log, up to a few seconds old if large; blocks for metadata."""
        kept = self._kept
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        standing = self._look()
        is_large = _size(standing.largest) > SMALL
        self._kept = (self._clock() + KEPT_SECONDS, standing) if is_large else None
        return standing

    def _look(self) -> LogStanding:
        largest = self._log.maintenance.largest_topics(TOPICS_MAX, GROUPS_MAX)
        standing = LogStanding(largest)
        for each in largest.topics:
            self._ends(standing, each.topic, each.topic_uuid)
        registry = self._log.registry
        for consumer in registry.list_consumers(CONSUMERS_MAX):
            for entry in registry.get_offsets(consumer):
                start, end = self._ends(standing, entry.topic).get(entry.partition, (0, 0))
                standing.lags.append((consumer, entry, max(0, end - max(entry.offset, start))))
        for topic in largest.grouped:
            standing.groups += self._groups(topic, GROUPS_MAX - len(standing.groups))
        return standing

    def _ends(
        self, standing: LogStanding, topic: TopicName, uuid: str | None = None
    ) -> dict[Partition, tuple[int, int]]:
        if topic not in standing.ends:
            standing.ends[topic] = {}
            with suppress(NotFound):
                states = self._log.registry.partition_states(
                    uuid or self._log.admin.get_topic(topic).uuid
                )
                standing.ends[topic] = {
                    state.partition: (state.log_start_offset, state.next_offset) for state in states
                }
        return standing.ends[topic]

    def _groups(
        self, topic: TopicName, most: int
    ) -> Iterator[tuple[ShareGroup, list[SharePartitionState]]]:
        shares = self._log.shares
        with suppress(NotFound):  # Deleted meanwhile.
            for group in shares.of_topic(topic)[:most]:
                # If no majority of the replicas responds, the other groups still have series.
                with suppress(Unavailable):
                    yield group, shares.coordinator.positions.describe(group)


def _size(largest: LargestTopics) -> int:
    topics = len(largest.topics) + largest.others
    named = sum(each.sums.partitions for each in largest.topics)
    return topics + named + largest.of_others.partitions


class SeriesName(NamedTuple):
    """The subject of samples."""

    kind: str
    """`traffic` and `process` of this process, `topic`, `group`, or `consumer`."""
    topic: str = ""
    name: str = ""
    """Name of the share group, or of the consumer."""


class History:
    """Samples of the last hour. Thread-safe; memory is bounded by `SERIES_MAX`.

    Args:
        log: The log.
        standings: Reads the lag of its consumers and groups.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, log: Log, standings: Standings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._standings = standings
        self._clock = clock
        self._lag_due = 0.0
        self._lock = threading.Lock()
        """A leaf lock, around the table of series."""
        self._series: OrderedDict[SeriesName, array[float]] = OrderedDict()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wings-history", daemon=True)

    def start(self) -> None:
        """Take a sample now, and others until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Take no more samples; waits for one that is being taken."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def columns(self, kind: str) -> list[str]:
        """Return the names of the numbers of a kind's samples, after that of their time."""
        return ["at", *_COLUMNS[kind]]

    def samples(self, series: SeriesName, since: int = 0) -> list[list[int]]:
        """Return the samples of a series, the oldest first: milliseconds since the epoch first.

        Args:
            series: The series.
            since: Milliseconds since the epoch; the last sample before it is returned too.
        """
        width = 1 + len(_COLUMNS[series.kind])
        with self._lock:
            found = self._series.get(series, array("d"))
            times = found[::width]
            numbers = [*map(round, found[max(0, bisect_right(times, since) - 1) * width :])]
        return [numbers[first : first + width] for first in range(0, len(numbers), width)]

    def topics_of(self, consumer: str) -> list[str]:
        """Return the topics in which there are samples of a consumer's lag."""
        with self._lock:
            return [each.topic for each in self._series if each[::2] == ("consumer", consumer)]

    def look(self) -> None:
        """Take a sample of every series now."""
        at = now_us() // 1_000
        traffic = self._log.traffic
        self._add(at, SeriesName("process"), (*usage(), *traffic.errors()))
        self._add(at, SeriesName("traffic"), _numbers(traffic.all()))
        for name in traffic.latest(SAMPLED_TOPICS_MAX):
            self._add(at, SeriesName("topic", str(name)), _numbers(traffic.of(name)))
        begun = self._clock()
        if begun >= self._lag_due:
            for series, numbers in self._lags():
                self._add(at, series, numbers)
            took = self._clock() - begun
            self._lag_due = begun + took / LAG_COST_MAX

    def _lags(self) -> Iterator[tuple[SeriesName, Iterable[float]]]:
        standing = self._standings.look()
        counts = self._log.shares.coordinator.counts
        for group, states in standing.groups:
            topic = str(group.topic.name)
            lag, held = (sum(map(attrgetter(name), states)) for name in ("lag", "in_flight"))
            done = counts.get((topic, group.name), GroupCounts())
            numbers = (lag, held, done.accepted, done.redelivered, done.dead_lettered)
            yield SeriesName("group", topic, group.name), numbers
        lags: dict[SeriesName, int] = {}
        for consumer, entry, lag in standing.lags:
            series = SeriesName("consumer", str(entry.topic), consumer)
            lags[series] = lags.get(series, 0) + lag
        for series, lag in lags.items():
            yield series, (lag,)

    def _add(self, at: int, series: SeriesName, numbers: Iterable[float]) -> None:
        sample = array("d", (at, *numbers))
        with self._lock:
            found = self._series.setdefault(series, array("d"))
            self._series.move_to_end(series)
            found += sample
            hour = at - SAMPLES_MAX * SAMPLE_SECONDS * 1_000
            while found[0] < hour or len(found) > SAMPLES_MAX * len(sample):
                del found[: len(sample)]
            if len(self._series) > SERIES_MAX:
                self._series.popitem(last=False)

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:  # Metadata is away; the next look may find it.
                _logger.debug("no samples", exc_info=True)
            if self._closing.wait(SAMPLE_SECONDS):
                return


def usage() -> tuple[float, float]:
    """Return this process's processor time in milliseconds, and its resident bytes."""
    resident = 0
    with suppress(OSError):  # Other systems than Linux.
        resident = int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    return time.process_time() * 1_000, resident


def _numbers(counts: TrafficCounts) -> tuple[float, ...]:
    return (counts.rows_in, counts.bytes_in, counts.rows_out, counts.bytes_out)
