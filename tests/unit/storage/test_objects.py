"""The behaviour of every object store."""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from tables import each

from wings_core.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    StorageCorrupt,
    Unavailable,
    WingsError,
)
from wings_core.storage.objects import ObjectStore, bind_objects, check_url, cloud, open_objects
from wings_core.storage.objects.directory import DirectoryObjects
from wings_core.storage.objects.interfaces import MERGE_GAP_BYTES, ObjectCounts, Operation, merge

DATA = bytes(range(256)) * 1024


def test_an_object_is_read_by_ranges_in_the_order_asked(objects: ObjectStore) -> None:
    arrow = memoryview(pa.py_buffer(DATA[1000:]))  # Whose items are not unsigned.
    objects.put("folios/a.folio", [DATA[:10], b"", memoryview(DATA)[10:1000], arrow])
    ranges = [(200_000, 200_100), (0, 5), (3, 8), (len(DATA) - 1, len(DATA)), (0, len(DATA))]
    read = objects.read("folios/a.folio", ranges)
    assert [buffer.to_pybytes() for buffer in read] == [DATA[start:end] for start, end in ranges]
    assert objects.size("folios/a.folio") == len(DATA)


def test_an_object_of_many_parts_is_stored_whole(objects: ObjectStore) -> None:
    objects.put("many", [b"%04d" % number for number in range(5_000)])
    assert objects.size("many") == 20_000
    assert objects.read("many", [(19_996, 20_000)])[0].to_pybytes() == b"4999"


def test_an_object_is_never_overwritten(objects: ObjectStore) -> None:
    objects.put("a", [b"first"])
    with pytest.raises(AlreadyExists, match="a exists already"):
        objects.put("a", [b"second"])
    assert objects.read("a", [(0, 5)])[0].to_pybytes() == b"first"


def test_objects_are_listed_with_size_and_time(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "LIST_OBJECTS", 2)
    assert list(objects.list()) == []
    names = {f"folios/{number}" for number in range(5)} | {"folios-2/x", "top"}
    for name in names:
        objects.put(name, [name.encode()])
    listed = list(objects.list())
    assert {(each.name, each.size) for each in listed} == {(name, len(name)) for name in names}
    assert all(abs(each.modified_at - time.time()) < 60 for each in listed)
    assert {each.name for each in objects.list("folios")} == {
        name for name in names if name.startswith("folios/")
    }


def test_a_deleted_object_is_gone_and_can_be_deleted_again(objects: ObjectStore) -> None:
    objects.put("a", [b"x"])
    objects.delete("a")
    objects.delete("a")
    assert list(objects.list()) == []
    with pytest.raises(StorageCorrupt, match="a is missing") as caught:
        objects.size("a")
    assert caught.value.missing


def test_folders_that_become_empty_are_deleted_while_others_put_into_them(tmp_path: Path) -> None:
    store = DirectoryObjects(tmp_path / "objects")

    def put_and_delete(number: int) -> None:
        for index in range(100):
            store.put(f"top/inner/{number}-{index}", [b"x"])
            store.delete(f"top/inner/{number}-{index}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put_and_delete, range(4)))
    assert list((tmp_path / "objects").iterdir()) == []
    store.put("top/inner/kept", [b"x"])
    store.put("top/other", [b"x"])
    store.delete("top/other")
    assert [each.name for each in store.list()] == ["top/inner/kept"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_an_object_whose_directory_was_not_synced_is_durable_once_it_is_put_again(
    tmp_path: Path, synced: Callable[[Path | None], list[Path]]
) -> None:
    store = DirectoryObjects(tmp_path)
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        synced(folder)
        with pytest.raises(Internal, match="Input/output error"):
            store.put("a/b/object", [b"rows"])
    done = synced(None)
    with pytest.raises(AlreadyExists):
        store.put("a/b/object", [b"rows"])
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= set(done)


def test_a_missing_object_is_named(objects: ObjectStore) -> None:
    with pytest.raises(StorageCorrupt, match="folios/gone is missing") as caught:
        objects.read("folios/gone", [(0, 1)])
    assert caught.value.missing
    assert caught.value.folio == "folios/gone"


@pytest.mark.parametrize("wanted", [(5, 15), (10, 20), (100, 200)])
def test_an_object_that_ends_too_early_is_named(
    objects: ObjectStore, wanted: tuple[int, int]
) -> None:
    objects.put("short", [b"0123456789"])
    with pytest.raises(StorageCorrupt, match="short has 10 bytes"):
        objects.read("short", [(0, 2), wanted])


@each("name", ["", "/etc/passwd", "../a", "a/../b", "a//b", ".put-1", "a b"])
def test_a_name_that_leads_elsewhere_is_refused(objects: ObjectStore, name: str) -> None:
    with pytest.raises(StorageCorrupt, match="not the name of an object"):
        objects.read(name, [(0, 1)])
    with pytest.raises(StorageCorrupt, match="not the name of an object"):
        objects.delete(name)


def test_a_check_leaves_nothing_behind(objects: ObjectStore) -> None:
    objects.check()
    assert list(objects.list()) == []


def test_requests_are_counted(objects: ObjectStore) -> None:
    objects.put("a", [DATA])
    objects.read("a", [(0, 10), (20, 30)])
    counts = objects.counts.snapshot()
    assert (counts["put"].requests, counts["put"].bytes) == (1, len(DATA))
    assert (counts["read"].requests, counts["read"].bytes) == (1, 30)
    assert counts["read"].failures == 0


@pytest.fixture
def is_outage_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one failure be an outage."""
    monkeypatch.setattr("wings_core.storage.objects.interfaces.OUTAGE_SECONDS", 0.0)


@pytest.mark.usefixtures("is_outage_at_once")
def test_an_outage_ends_with_a_success_and_that_of_refused_puts_with_a_put() -> None:
    counts = ObjectCounts("s3://b")

    def attempt(operation: Operation, error: Exception | None = None) -> str | None:
        with suppress(WingsError), counts.counted(operation):
            if error is not None:
                raise error
        return None if counts.outage is None else counts.outage.error.message

    assert attempt("read", StorageCorrupt("missing")) is None
    assert attempt("put", Unavailable("away")) == "away"
    assert attempt("put", Unavailable("gone")) == "gone"
    assert attempt("read") is None
    assert attempt("put", PermissionDenied("denied")) == "denied"
    assert attempt("read") == "denied"
    assert attempt("read", PermissionDenied("denied too")) == "denied"
    assert attempt("put") is None


@pytest.mark.usefixtures("is_outage_at_once")
def test_an_outage_ends_with_a_check_and_that_of_refused_puts_with_one_of_writes(
    objects: ObjectStore,
) -> None:
    counts, operations = objects.counts, list[Operation](("read", "put"))
    objects.put("a", [b"x"])
    for operation in operations:
        with suppress(WingsError), counts.counted(operation):
            raise PermissionDenied("denied")
        assert counts.outage is not None
        objects.check(write=False)
        assert (counts.outage is not None) == counts.refuses_puts == (operation == "put")
    objects.check()
    assert counts.outage is None


@pytest.mark.usefixtures("is_outage_at_once")
def test_an_outage_for_lack_of_space_ends_with_room_for_what_found_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, free = DirectoryObjects(tmp_path), 999

    def free_bytes(_: Path) -> int:
        return free

    monkeypatch.setattr("wings_core.storage.objects.directory.free_bytes", free_bytes)
    for end in (store.check, lambda: store.put("b", [bytes(1_000)])):
        with suppress(WingsError), store.counts.counted("put", 1_000):
            raise ResourceExhausted("the disk is full")
        store.put("a", [b"x"])
        store.delete("a")
        if end == store.check:
            store.check()
            free = 1_000
        assert store.counts.outage is not None
        end()
        assert store.counts.outage is None


def test_objects_belong_to_one_metadata_store(objects: ObjectStore) -> None:
    bind_objects(objects, "one")
    bind_objects(objects, "one")
    with pytest.raises(InvalidArgument, match="belong to metadata one, not to two"):
        bind_objects(objects, "two")


def test_a_bucket_that_is_not_there_is_said(s3_url: str) -> None:
    missing = open_objects("s3://wings-no-such-bucket/place")
    with pytest.raises(InvalidArgument, match="no bucket at s3://wings-no-such-bucket/place"):
        missing.check()


def test_a_store_that_is_down_is_unavailable_within_its_bounds(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wings_core.storage.objects import RetryBounds

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    bounds = RetryBounds(attempts_max=3, pause_seconds=0.001)
    objects = open_objects(s3_url, bounds)
    with pytest.raises(
        Unavailable, match=r"could not put a at s3://.*: Conn.* refused \(tried 3 tim"
    ):
        objects.put("a", [b"x"])
    assert objects.counts.snapshot()["put"].failures == 3


@each(
    ("url", "reason"),
    [
        ("s3://key:secret@bucket", "holds no credentials"),
        ("s3://key@bucket", "holds no credentials"),
        ("abfss://container:secret@account", "holds no credentials"),
        ("s3://bucket/x?secret=1", r"no \? or #"),
        ("s3:///prefix", "s3://BUCKET"),
        ("ftp://host/x", "no kind of object store"),
        ("file://host/x", "file:///absolute/path"),
        ("", "no kind of object store"),
    ],
)
def test_a_url_that_is_no_object_store_is_refused_without_its_secrets(
    url: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=reason) as caught:
        check_url(url)
    assert "secret" not in caught.value.message


def test_neighbouring_ranges_are_one_request() -> None:
    gap = MERGE_GAP_BYTES
    ranges = [
        (100, 200),
        (0, 10),
        (150, 300),
        (300 + gap, 400 + gap),
        (401 + 2 * gap, 402 + 2 * gap),
    ]
    assert merge(ranges) == [(0, 400 + gap), (401 + 2 * gap, 402 + 2 * gap)]
