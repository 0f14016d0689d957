"""What is deleted in the background, and what a store that fails keeps from that."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from wings_core import reclaim
from wings_core.errors import Unavailable
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.reclaim import Reclaimer
from wings_core.storage.folio_stores import SEGMENT_SUFFIX, SegmentObjects
from wings_core.storage.objects.directory import DirectoryObjects
from wings_core.storage.page_cache import PageCache


class Segments(SegmentObjects):
    """Segments in a directory that may be down, and tell when one was deleted."""

    def __init__(self, directory: Path) -> None:
        super().__init__(DirectoryObjects(directory), PageCache(1), SEGMENT_SUFFIX, -60)
        self.failing: str | None = None
        self.error: BaseException = Unavailable("the store is down")
        self.asked = threading.Event()
        self.deleted = threading.Event()

    def folios(self) -> set[str]:
        self.asked.set()
        if self.failing == "folios":
            raise self.error
        return super().folios()

    def delete(self, folio: str) -> None:
        self.asked.set()
        if self.failing == "delete":
            raise Unavailable("the store is down")
        super().delete(folio)
        self.deleted.set()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[Segments]]:
    stores = [Segments(tmp_path / name) for name in ("one", "two")]
    for store in stores:
        store.objects.put(store.name("topic", 0), [b"left over"])
    yield stores
    for store in stores:
        store.close()


@pytest.mark.parametrize("failing", ["folios", "delete"])
def test_a_store_that_is_down_keeps_none_of_the_others_from_being_swept(
    stores: list[Segments], tmp_path: Path, failing: str
) -> None:
    down, up = stores
    down.failing = failing
    metadata = SqliteMetadata(tmp_path / "metadata.db")
    with (
        closing(metadata),
        closing(Reclaimer(metadata.registry, metadata.stages, stores, 60)) as reclaimer,
    ):
        assert up.deleted.wait(30)
        assert down.asked.is_set()
        assert not down.deleted.is_set()
        down.failing = None
        reclaimer.wake()
        assert down.deleted.wait(30)
    assert not any(store.folios() for store in stores)
    # Nor is a directory left.
    assert [list((tmp_path / name).iterdir()) for name in ("one", "two")] == [[], []]


def test_the_files_of_all_stores_are_listed_a_small_part_of_the_time(
    stores: list[Segments], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaim, "RESTS", 1e9)
    (_, last) = stores
    metadata = SqliteMetadata(tmp_path / "metadata.db")
    with (
        closing(metadata),
        closing(Reclaimer(metadata.registry, metadata.stages, stores, 60)) as reclaimer,
    ):
        assert last.deleted.wait(30)
        last.asked.clear()
        reclaimer.wake()
        assert not last.asked.wait(0.5)
        reclaimer.run()  # An operator's.
        assert last.asked.is_set()


class Panic(BaseException):
    """As extensions in Rust raise them, which is no `Exception`."""


@pytest.mark.parametrize("error", [RuntimeError("a fault of a library"), Panic("out of bounds")])
def test_a_fault_that_nobody_foresaw_does_not_end_the_giving_back(
    stores: list[Segments], tmp_path: Path, error: BaseException
) -> None:
    (faulty, _) = stores
    faulty.failing, faulty.error = "folios", error
    metadata = SqliteMetadata(tmp_path / "metadata.db")
    with (
        closing(metadata),
        closing(Reclaimer(metadata.registry, metadata.stages, stores, 60)) as reclaimer,
    ):
        assert faulty.asked.wait(30)
        faulty.failing = None
        reclaimer.wake()
        assert faulty.deleted.wait(30)
