"""Pages that are damaged stay where they are, and keep no others from being tiered."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_calls import Calls
from fix_metadata import open_sqlite

from wings_core.data_directory import DataDirectory
from wings_core.deployments import OneDirectory
from wings_core.errors import Unavailable
from wings_core.ingest.pending import PushStream
from wings_core.ingest.prepare import Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.log import Log
from wings_core.maintain import Maintainer, tiering
from wings_core.maintain.workers import WORKERS, LeaseKeeper
from wings_core.model import Location, Topic, TopicConfig
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED, Partition

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


# A maintainer that is closed while it works. ######################################################

SECONDS_MAX = 30.0


def test_whoever_waits_for_a_pass_is_told_that_it_ends(tmp_path: Path, calls: Calls) -> None:
    with open_sqlite(tmp_path) as under_test:
        metadata: Any = under_test.opened
        created = under_test.create_topic("k")
        topic: Topic = metadata.admin.alter_topic(created.name, TopicConfig(retention_bytes=1))
        for key in range(2 * WORKERS):
            for _ in range(2):
                under_test.push(topic, partition=Partition(str(key)))
        began, go_on = threading.Semaphore(0), threading.Event()

        def wait(*_: object, **__: object) -> None:
            began.release()
            assert go_on.wait(SECONDS_MAX)

        calls.before(metadata.maintenance, "expire", wait)
        submitted = threading.Semaphore(0)
        calls.after(ThreadPoolExecutor, "submit", lambda *_: submitted.release())
        ended: list[BaseException | None] = []

        def run() -> None:
            try:
                maintainer.run(topic)
                ended.append(None)
            except Unavailable as error:
                ended.append(error)

        with closing(Maintainer(metadata, 3_600.0, lambda: None)) as maintainer:
            # The second pass waits for workers, all of which the first one keeps.
            passes = [threading.Thread(target=run, daemon=True) for _ in range(2)]
            passes[0].start()
            for _ in range(WORKERS):
                assert began.acquire(timeout=SECONDS_MAX)
            passes[1].start()
            for _ in range(2 * WORKERS):
                assert submitted.acquire(timeout=SECONDS_MAX)
            closing_began = threading.Event()
            calls.before(LeaseKeeper, "close", lambda *_: closing_began.set())
            close = threading.Thread(target=maintainer.close, daemon=True)
            close.start()
            assert closing_began.wait(SECONDS_MAX)
            go_on.set()
            for thread in (close, *passes):
                thread.join(SECONDS_MAX)
                assert not thread.is_alive()
        assert any(isinstance(error, Unavailable) for error in ended)
