"""Pages that are damaged stay where they are, and keep no others from being tiered."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.maintain import tiering
from wings_core.model import Location, Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED

PAGES = 12
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    return DataDirectory.open(tmp_path / "data")


@pytest.fixture
def log(directory: DataDirectory) -> Iterator[Log]:
    log = Log.open(OneDirectory(directory), Limits(maintenance_seconds=1e6, inline_bytes_max=0))
    yield log
    log.close()


@pytest.fixture
def topic(log: Log) -> Topic:
    """Return a topic of as many pages as a segment takes, all of which are due."""
    config = TopicConfig(tier_after_ms=0, segment_bytes=1 << 20)
    topic = log.admin.create_topic(TopicName.parse("t"), SCHEMA, None, config)
    preparer, stream = Preparer(topic, log.limits), PushStream()
    rows = pa.record_batch([pa.array(range(100))], schema=SCHEMA)
    for _ in range(PAGES):
        batch = preparer.prepare(rows, PushOptions())
        log.group_commit.submit(stream, batch, awaited=True).accepted()
    return topic


def locations(log: Log, topic: Topic) -> tuple[Location, ...]:
    return tuple(log.registry.locate(topic.uuid, UNPARTITIONED, 0, 1 << 40).locations)


def damage(directory: DataDirectory, page: Location) -> None:
    with (directory.segments / page.address.folio).open("r+b") as file:
        file.seek(page.address.position + page.address.length // 2)
        file.write(b"\xff\xff\xff")


def hot(log: Log, topic: Topic) -> list[Location]:
    return [page for page in locations(log, topic) if not page.format.is_merged]


@pytest.mark.parametrize("numbers", [(5,), (0,), (PAGES - 1,), (0, 1, 7)])
def test_what_is_around_damaged_pages_is_moved(
    log: Log, directory: DataDirectory, topic: Topic, numbers: tuple[int, ...]
) -> None:
    pages = locations(log, topic)
    for number in numbers:
        damage(directory, pages[number])
    report = log.maintainer.run(topic)
    assert report.failures == len(numbers)
    assert report.pages_merged == PAGES - len(numbers)
    assert hot(log, topic) == [pages[number] for number in numbers]
    again = log.maintainer.run(topic)
    assert (again.failures, again.pages_merged) == (0, 0)


def test_a_turn_passes_over_a_bounded_number_of_damaged_pages(
    log: Log, directory: DataDirectory, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering, "DAMAGED_PER_TURN_MAX", 2)
    pages = locations(log, topic)
    for page in pages[:4]:
        damage(directory, page)
    assert log.maintainer.run(topic).pages_merged == 0
    assert log.maintainer.run(topic).pages_merged == PAGES - 4
