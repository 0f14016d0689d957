"""The log's index, rebuilt from the sound rows of metadata and from pages."""

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from wings_core.check import Problem
from wings_core.errors import Internal
from wings_core.metadata.store.pages import location_of
from wings_core.model import INLINE_SUFFIX, LOST_FOLIO, Location, PageAddress, PageFormat, Topic
from wings_core.partitions import UNPARTITIONED, Partition
from wings_core.repair.catalog import KeptTopics, as_int
from wings_core.repair.pages import PageSource
from wings_core.repair.salvage import Row, Salvaged

BELIEVED_MAX = 1_000_000_000
"""Most messages after the last page for which evidence counts: a consumer may have committed any
offset."""


class Evidence:
    """The highest offsets recorded anywhere but in the index of pages.

    Args:
        salvaged: The rows read from metadata.
        catalog: Its topics.
    """

    def __init__(self, salvaged: Salvaged, catalog: KeptTopics) -> None:
        self._ends: dict[tuple[object, object], int] = defaultdict(int)
        names = {str(topic.name): topic_id for topic_id, topic in catalog.topics.items()}
        for row in salvaged.rows("consumer_offsets"):
            self._see(row["topic_id"], row["partition"], row["offset"])
        for row in salvaged.rows("producer_results"):
            for each in _parsed(row["committed"]):
                if isinstance(each, dict):
                    self._see(
                        row["topic_id"], each.get("partition"), _after(each.get("end_offset"))
                    )
        for row in salvaged.rows("publishes"):
            for each in _parsed(row["committed"]):
                if isinstance(each, list) and len(each) == 4:
                    self._see(names.get(str(each[0])), each[1], _after(each[3]))

    def end(self, topic_id: int, partition: str, reached: int) -> int:
        """Return a lower bound of a partition's next offset.

        Args:
            topic_id: The topic's id in metadata.
            partition: The partition's value.
            reached: The end of its pages, returned if there is no other evidence.
        """
        said = self._ends[topic_id, partition]
        return said if reached < said <= reached + BELIEVED_MAX else reached

    def _see(self, topic_id: object, partition: object, end: object) -> None:
        if isinstance(end, int):
            key = (topic_id, partition)
            self._ends[key] = max(self._ends[key], end)


def _after(offset: object) -> int | None:
    return offset + 1 if isinstance(offset, int) else None


def _parsed(text: object) -> list[object]:
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return []
    return found if isinstance(found, list) else []


Verify = Callable[[Location], bool]
"""Returns whether a page can be read and matches its location."""


@dataclass(slots=True)
class Chain:
    """The pages of a partition in order of offset, without overlaps."""

    pages: list[Location] = field(default_factory=list[Location])

    @property
    def end(self) -> int:
        """End offset of the last page; 0 if there are no pages."""
        return self.pages[-1].end_offset + 1 if self.pages else 0

    def add(self, page: Location, verify: Verify | None = None) -> bool:
        """Add a page unless its offsets overlap another's; returns whether it was added.

        Args:
            page: The page.
            verify: Verifies the page first; None if it is known to be sound.
        """
        if not 0 <= page.start_offset <= page.end_offset:
            return False
        at = bisect_left(self.pages, page.start_offset, key=lambda each: each.end_offset)
        if at < len(self.pages) and self.pages[at].start_offset <= page.end_offset:
            return False
        if verify is not None and not verify(page):
            return False
        self.pages.insert(at, page)
        return True

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield ranges `[first, last]` of offsets in no page, from `start` to `end` (exclusive)."""
        expected = start
        for page in self.pages:
            if page.start_offset > expected:
                yield expected, min(page.start_offset, end) - 1
            expected = max(expected, page.end_offset + 1)
            if expected >= end:
                return
        if expected < end:
            yield expected, end - 1

    def fill(
        self, pages: Iterable[Location], start: int, end: int | None, verify: Verify
    ) -> list[Location]:
        """Fill gaps with pages or parts of pages.

        Args:
            pages: Candidates, the likeliest first.
            start: First offset to fill.
            end: End of the offsets to fill, exclusive; None for no end.
            verify: Verifies each page before it is added.

        Returns:
            The pages added.
        """
        added: list[Location] = []
        for page in pages:
            if page.end_offset < start or (end is not None and page.start_offset >= end):
                continue
            if self.add(page, verify):
                added.append(page)
        return added

    def lose(
        self, start: int, end: int, last_timestamp: int | None, position: Iterator[int]
    ) -> list[tuple[int, int]]:
        """Fill the remaining gaps with unreadable pages.

        They get the latest possible timestamp, so that a search by time does not skip them.

        Args:
            start: The log's start offset.
            end: The log's end offset, exclusive.
            last_timestamp: Timestamp of the last message, if known.
            position: Supplies the position of each such page.

        Returns:
            The offset range of each gap, both ends inclusive.
        """
        gaps = list(self.gaps(start, end))
        for first, last in gaps:
            at = bisect_left(self.pages, first, key=lambda each: each.end_offset)
            if at < len(self.pages):
                timestamp = self.pages[at].earliest_timestamp
            else:
                before = self.pages[-1].timestamp if self.pages else 0
                timestamp = max(before, last_timestamp or 0)
            address = PageAddress(LOST_FOLIO, next(position), 1)
            self.pages.insert(at, Location(first, last, timestamp, address))
        return gaps


FOLIO_TRIES = 3
"""Pages that must match before a file is taken for theirs."""

FILLED_SHOWN_MAX = 10
"""Most pages found by notes that a report names."""

_REST = ("first_timestamp", "format", "first_row", "slice_bytes", "schema_version")

_Noted = Mapping[tuple[str, Partition], Sequence[Location]]
"""Noted locations of pages by topic UUID and partition, the latest first."""


@dataclass(slots=True)
class Repaired:
    """A partition to write to the new directory."""

    partition_id: int
    topic_id: int
    topic: Topic
    value: Partition
    log_start_offset: int
    next_offset: int
    last_timestamp: int
    pages: list[Location]


@dataclass(slots=True)
class LogRepair:
    """The rebuilt index of the log, with the losses and the rebuilt parts."""

    salvaged: Salvaged
    catalog: KeptTopics
    source: PageSource
    folios: dict[int, str]
    """Names of folios by id."""
    evidence: Evidence
    noted: _Noted
    noted_partitions: Mapping[int, Row]
    """Topic and value of partitions by id."""
    partitions: list[Repaired] = field(default_factory=list[Repaired])
    lost: list[Problem] = field(default_factory=list[Problem])
    rebuilt: list[str] = field(default_factory=list[str])
    position: Iterator[int] = field(default_factory=count)
    """The position of the next lost page, in a file that does not exist."""

    def run(self) -> None:
        """Rebuild all partitions."""
        pages: dict[int, list[Row]] = defaultdict(list)
        for row in self.salvaged.rows("pages"):
            pages[as_int(row["partition_id"])].append(row)
        rows = {as_int(row["id"]): row for row in self.salvaged.rows("partitions")}
        known = {as_int(row["id"]): row for row in self.salvaged.lost("partitions")}
        known |= {key: row for key, row in self.noted_partitions.items() if key in pages}
        self._find_folios(pages.values(), rows)
        taken: set[tuple[int, Partition]] = set()
        # Sound rows first, so that a guessed partition does not take the place of one.
        for partition_id in [*sorted(rows), *sorted({*pages, *known} - {*rows})]:
            row = rows.get(partition_id)
            found = sorted(pages.get(partition_id, ()), key=lambda each: as_int(each["end_offset"]))
            where = self._identify(partition_id, row, known.get(partition_id), found)
            if where is None:
                continue
            topic_id, value = where
            if (topic_id, value) in taken:
                name = str(self.catalog.topics[topic_id].name)
                self.lost.append(Problem("it is there twice; one is left out", name, value))
                continue
            taken.add((topic_id, value))
            self._repair(partition_id, topic_id, value, row, found)
        self._add_noted(taken, max([0, *pages, *rows, *known]) + 1)
        if not self.salvaged.is_complete("partitions"):
            self.lost.append(
                Problem("partitions may be missing whose row and pages' rows are both lost")
            )

    def _identify(
        self, partition_id: int, row: Row | None, known: Row | None, pages: Sequence[Row]
    ) -> tuple[int, Partition] | None:
        """Return topic and value of a partition; None if it is not kept."""
        said = row or known or {}
        topic_id, value = said.get("topic_id"), said.get("value")
        if topic_id is None:
            topic_id = self._topic_of(pages)
        if not isinstance(topic_id, int) or topic_id not in self.catalog.topics:
            deleted = isinstance(topic_id, int) and topic_id in self.catalog.rows
            if not deleted and (pages or row):
                rows = sum(
                    as_int(page["end_offset"]) - as_int(page["start_offset"]) + 1 for page in pages
                )
                self._lose_topic(topic_id, value, rows)
            return None
        topic = self.catalog.topics[topic_id]
        if row is None or (partition_id,) in self.salvaged.tables["partitions"].doubted:
            # Uncertain: the pages decide.
            for page in pages:
                location = self._location(page)
                by_rows = location and self.source.partition_of(topic, location)
                if by_rows:
                    value = by_rows
                    break
        if topic.partition_key is None:
            value = UNPARTITIONED
        if not isinstance(value, str):
            message = f"the partition with the id {partition_id} cannot be identified"
            self.lost.append(Problem(message, str(topic.name)))
            return None
        return topic_id, Partition(value)

    def _lose_topic(self, topic_id: object, value: object, rows: int) -> None:
        topic = f"topic {topic_id}" if topic_id is not None else "a topic"
        message = f"{rows} messages of {topic}, whose row and pages are lost"
        self.lost.append(Problem(message, partition=None if value is None else str(value)))

    def _topic_of(self, pages: Sequence[Row]) -> int | None:
        uuids = {topic.uuid.replace("-", ""): key for key, topic in self.catalog.topics.items()}
        for page in pages:
            location = self._location(page)
            uuid = None if location is None else self.source.topic_uuid_of(location)
            if uuid in uuids:
                return uuids[uuid]
        return None

    def _location(self, row: Row) -> Location | None:
        """Return the location of a page; None if its file or its format is unknown."""
        folio = self.folios.get(as_int(row["folio_id"]))
        if folio is None or as_int(row["length"]) <= 0:
            return None
        if row["format"] == PageFormat.INLINE and not self.source.exists(folio):
            return None
        try:
            return location_of(
                as_int(row["start_offset"]),
                as_int(row["end_offset"]),
                as_int(row["timestamp"]),
                folio,
                as_int(row["position"]),
                as_int(row["length"]),
                *(row[name] for name in _REST),  # pyright: ignore[reportArgumentType] - numbers, as their checksum matches
            )
        except Internal:
            return None

    def _repair(
        self,
        partition_id: int,
        topic_id: int,
        value: Partition,
        row: Row | None,
        pages: Sequence[Row],
    ) -> None:
        topic = self.catalog.topics[topic_id]
        start = 0 if row is None else as_int(row["log_start_offset"])
        chain = self._chain(topic, value, start, pages)
        noted = self.noted.get((topic.uuid, value), ())
        filled = chain.fill(noted, start, None, self._verifier(topic, value))
        if filled:
            self.rebuilt.append(_filled(topic, value, filled))
        if row is None:
            end, last = self.evidence.end(topic_id, value, chain.end), None
            start = chain.pages[0].start_offset if chain.pages else end
            self._lose_row(topic, value, start, end)
        else:
            end = max(as_int(row["next_offset"]), chain.end)
            last = as_int(row["last_timestamp"])
        for gap in chain.lose(start, end, last, self.position):
            message = "the location of these messages is lost"
            self.lost.append(Problem(message, str(topic.name), value, *gap))
        self.partitions.append(
            Repaired(
                partition_id,
                topic_id,
                topic,
                value,
                start,
                end,
                chain.pages[-1].timestamp if chain.pages else last or 0,
                chain.pages,
            )
        )

    def _chain(self, topic: Topic, value: Partition, start: int, pages: Sequence[Row]) -> Chain:
        """Return the pages whose locations metadata has."""
        chain = Chain()
        unproven: list[Location] = []
        of_before = self.salvaged.tables["pages"].unproven
        for page in pages:
            location = self._location(page)
            if location is None or location.end_offset < start:
                continue
            if (page["partition_id"], page["end_offset"]) in of_before:
                unproven.append(location)
            else:
                chain.add(location)
        chain.fill(unproven, start, None, self._verifier(topic, value))
        return chain

    def _verifier(self, topic: Topic, value: Partition) -> Verify:
        return lambda location: self.source.is_right(topic, value, location)

    def _lose_row(self, topic: Topic, value: Partition, start: int, end: int) -> None:
        name = str(topic.name)
        if start:
            message = "the start of its log is lost: earlier messages are lost or had expired"
            self.lost.append(Problem(message, name, value, 0, start - 1))
        message = f"the end of its log is lost: it continues at {end}; later messages may be lost"
        self.lost.append(Problem(message, name, value))

    def _add_noted(self, taken: set[tuple[int, Partition]], next_id: int) -> None:
        """Rebuild partitions that are only known from notes."""
        ids = {topic.uuid: topic_id for topic_id, topic in self.catalog.topics.items()}
        for (uuid, value), locations in self.noted.items():
            topic_id = ids.get(uuid)
            if topic_id is None or (topic_id, value) in taken:
                continue
            topic = self.catalog.topics[topic_id]
            if any(self.source.is_right(topic, value, location) for location in locations):
                self._repair(next_id, topic_id, value, None, ())
                next_id += 1

    def _find_folios(self, pages: Iterable[Sequence[Row]], rows: Mapping[int, Row]) -> None:
        """Find the files of pages whose folio's row is lost, by trying each file."""
        unknown: dict[int, list[Row]] = defaultdict(list)
        for some in pages:
            for row in some:
                folio_id = as_int(row["folio_id"])
                if folio_id not in self.folios:
                    unknown[folio_id].append(row)
        free = self.source.folios() - set(self.folios.values()) if unknown else set[str]()
        for folio_id, some in unknown.items():
            if all(row["format"] == PageFormat.INLINE for row in some):
                continue  # Its bytes are lost with its row.
            for folio in sorted(free):
                if all(self._fits(folio, row, rows) for row in some[:FOLIO_TRIES]):
                    self.folios[folio_id] = folio
                    free.discard(folio)
                    self.rebuilt.append(f"the file with the id {folio_id}: {folio}")
                    break

    def _fits(self, folio: str, row: Row, rows: Mapping[int, Row]) -> bool:
        partition = rows.get(as_int(row["partition_id"]))
        topic = self.catalog.topics.get(as_int(partition["topic_id"])) if partition else None
        if partition is None or topic is None:
            return False
        self.folios[-1] = folio
        location = self._location({**row, "folio_id": -1})
        del self.folios[-1]
        return location is not None and self.source.is_right(
            topic, Partition(str(partition["value"])), location
        )


def _filled(topic: Topic, value: Partition, pages: Sequence[Location]) -> str:
    offsets = ", ".join(
        f"{each.start_offset} to {each.end_offset}" for each in pages[:FILLED_SHOWN_MAX]
    )
    return f"{topic.name}, partition {value}: {len(pages)} pages by notes, offsets {offsets}"


def read_folios(salvaged: Salvaged, source: PageSource) -> dict[int, str]:
    """Return the names of files by id; of several versions of a name, the one that exists."""
    folios: dict[int, str] = {}
    for row in [*salvaged.lost("folios"), *salvaged.rows("folios")]:
        folio_id, name = row.get("id"), row.get("name")
        if not isinstance(folio_id, int) or not isinstance(name, str):
            continue
        if folio_id not in folios or source.exists(name):
            folios[folio_id] = name
    return folios


def read_inline(salvaged: Salvaged) -> tuple[dict[str, bytes], dict[int, str]]:
    """Return the bytes of inline folios by name, and their names by id.

    A folio whose name is lost gets a generated one.
    """
    names = {
        as_int(row["id"]): str(row["name"])
        for row in [*salvaged.lost("folios"), *salvaged.rows("folios")]
        if isinstance(row.get("id"), int) and str(row.get("name")).endswith(INLINE_SUFFIX)
    }
    data: dict[str, bytes] = {}
    ids: dict[int, str] = {}
    for row in salvaged.rows("inline_folios"):
        folio_id, content = as_int(row["folio_id"]), row["data"]
        if isinstance(content, bytes):
            ids[folio_id] = names.get(folio_id, f"{folio_id:016x}-recovered{INLINE_SUFFIX}")
            data[ids[folio_id]] = content
    return data, ids
