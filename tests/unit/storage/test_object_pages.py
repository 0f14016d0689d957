"""What is read of object stores, and what is kept of it."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fix_calls import Calls
from pages import encode_page

from wings_core.errors import StorageCorrupt, Unavailable
from wings_core.model import PageAddress
from wings_core.storage import page_cache
from wings_core.storage.object_pages import GROUP_BYTES, WHOLE_PAGE_BYTES, ObjectPages
from wings_core.storage.objects import RetryBounds
from wings_core.storage.objects.directory import DirectoryObjects
from wings_core.storage.objects.interfaces import retry
from wings_core.storage.page import read_head
from wings_core.storage.page_cache import PageCache

TOPIC = "0123456789abcdef0123456789abcdef"
COLUMNS = 20
SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("nothing", pa.null()),
        ("nested", pa.struct([("a", pa.list_(pa.int32())), ("b", pa.bool_())])),
        *((f"c{index}", pa.int64()) for index in range(COLUMNS - 3)),
    ]
)


class Recorded(DirectoryObjects):
    """A directory that tells what was read of it, and waits where it is told to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.reads: list[list[tuple[int, int]]] = []
        self.last: list[pa.Buffer] = []
        self.gate = threading.Event()
        self.gate.set()

    def read(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        self.reads.append(list(ranges))
        assert self.gate.wait(20)
        self.last = super().read(name, ranges)
        return self.last


@pytest.fixture
def objects(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


@cache
def _rows() -> pa.RecordBatch:
    numbers = range(20_000)
    nested = [{"a": [number % 1000] * (number % 3), "b": number % 2 == 0} for number in numbers]
    return pa.record_batch(
        [
            pa.array([f"text {number}" for number in numbers]),
            pa.nulls(len(numbers)),
            pa.array(nested, SCHEMA.field("nested").type),
            *(
                pa.array([number * index for number in numbers], pa.int64())
                for index in range(COLUMNS - 3)
            ),
        ],
        schema=SCHEMA,
    )


def _batch(start: int, rows: int) -> pa.RecordBatch:
    return _rows().slice(start, rows)


def _store(objects: Recorded, name: str, *batches: pa.RecordBatch) -> list[PageAddress]:
    pages = [encode_page(batch, TOPIC) for batch in batches]
    objects.put(name, [part for page in pages for part in page.parts])
    addresses: list[PageAddress] = []
    position = 0
    for page in pages:
        addresses.append(PageAddress(name, position, page.length))
        position += page.length
    return addresses


@pytest.fixture
def compress(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that lets large pages be encoded with compressed buffers from then on."""
    new_stream = pa.ipc.new_stream

    def new_compressed_stream(sink: Any, schema: pa.Schema, **_: Any) -> Any:
        return new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))

    return lambda: monkeypatch.setattr(pa.ipc, "new_stream", new_compressed_stream)


@pytest.mark.parametrize("columns", [None, [2, 0], [5], [1], [19, 1, 2], []])
@pytest.mark.parametrize("whole_first", [False, True])
def test_compressed_pages_are_read_whole_or_in_part(
    objects: Recorded, compress: Callable[[], None], columns: list[int] | None, whole_first: bool
) -> None:
    compress()
    batch = _batch(0, 20_000)
    _, address = _store(objects, "o", _batch(7, 1), batch)
    assert address.length < batch.nbytes / 2
    pages = ObjectPages(objects, PageCache(1 << 30))
    if whole_first:
        assert pages.read(address, TOPIC, SCHEMA).equals(batch)
    read = pages.read(address, TOPIC, SCHEMA, columns)
    read.validate(full=True)
    assert read.equals(batch if columns is None else batch.select(columns))


@pytest.mark.parametrize("compressed", [False, True])
def test_of_a_large_page_only_what_is_needed_is_read(
    objects: Recorded, compress: Callable[[], None], compressed: bool
) -> None:
    if compressed:
        compress()
    batch = _batch(0, 20_000)
    (address,) = _store(objects, "o", batch)
    pages = ObjectPages(objects, PageCache(1 << 30))
    assert pages.read(address, TOPIC, SCHEMA, [12, 4]).equals(batch.select([12, 4]))
    (head,), columns = objects.reads
    assert head[1] < 2_000
    assert len(columns) == 2
    assert sum(end - start for start, end in columns) < 0.15 * address.length
    # The header is known now, and the columns are in memory.
    pages.read(address, TOPIC, SCHEMA, [4, 12])
    assert len(objects.reads) == 2
    pages.read(address, TOPIC, SCHEMA, [7])
    assert len(objects.reads) == 3


def test_a_flipped_byte_is_found_in_the_column_that_has_it_and_in_no_other(
    objects: Recorded, tmp_path: Path, compress: Callable[[], None]
) -> None:
    compress()
    batch = _batch(0, 20_000)
    (address,) = _store(objects, "o", batch)
    ObjectPages(objects, PageCache(1)).read(address, TOPIC, SCHEMA, [12])
    start, end = objects.reads[-1][0]
    data = bytearray((tmp_path / "o").read_bytes())
    data[(start + end) // 2] ^= 1
    (tmp_path / "o").write_bytes(data)
    pages = ObjectPages(objects, PageCache(1))
    assert pages.read(address, TOPIC, SCHEMA, [4]).equals(batch.select([4]))
    for columns in ([12], [4, 12], None):
        with pytest.raises(StorageCorrupt, match="column 'c9' does not match"):
            pages.read(address, TOPIC, SCHEMA, columns)


@pytest.mark.parametrize("position", [1, 50, 70, 300, 800])
def test_a_flipped_byte_in_header_or_metadata_is_found_where_columns_are_read(
    objects: Recorded, tmp_path: Path, position: int
) -> None:
    (address,) = _store(objects, "o", _batch(0, 20_000))
    data = bytearray((tmp_path / "o").read_bytes())
    data[position] ^= 1
    (tmp_path / "o").write_bytes(data)
    with pytest.raises(StorageCorrupt, match="page at byte 0 of o"):
        ObjectPages(objects, PageCache(1)).read(address, TOPIC, SCHEMA, [4])


@pytest.mark.parametrize("is_stored_damaged", [False, True])
def test_what_was_damaged_in_memory_is_read_again_once(
    objects: Recorded, tmp_path: Path, is_stored_damaged: bool
) -> None:
    batch = _batch(0, 500)
    (address,) = _store(objects, "o", batch)
    assert address.length < WHOLE_PAGE_BYTES
    pages = ObjectPages(objects, PageCache(1 << 20))
    pages.read(address, TOPIC, SCHEMA, [4])  # All of it is in memory then, and this is verified.
    head = read_head(memoryview(objects.last[0]), address.length, TOPIC, SCHEMA)
    position = head.column(12)[0]
    ctypes.c_ubyte.from_address(objects.last[0].address + position).value ^= 1
    if is_stored_damaged:
        data = bytearray((tmp_path / "o").read_bytes())
        data[position] ^= 1
        (tmp_path / "o").write_bytes(data)
        for reads in (2, 3):
            with pytest.raises(StorageCorrupt, match="column 'c9' does not match"):
                pages.read(address, TOPIC, SCHEMA, [12])
            assert len(objects.reads) == reads
        return
    for _ in range(2):
        assert pages.read(address, TOPIC, SCHEMA, [12]).equals(batch.select([12]))
        assert len(objects.reads) == 2


def test_small_neighbours_are_read_together_and_large_groups_are_not(objects: Recorded) -> None:
    batches = [_batch(number * 10, 2_000) for number in range(30)]
    addresses = _store(objects, "o", *batches)
    assert addresses[0].length > WHOLE_PAGE_BYTES
    pages = ObjectPages(objects, PageCache(1 << 30))
    for read, batch in zip(pages.read_all(addresses, TOPIC, SCHEMA), batches, strict=True):
        assert read.equals(batch)
    total = sum(address.length for address in addresses)
    assert len(objects.reads) == -(-total // (GROUP_BYTES + addresses[0].length))
    pages.close()


def test_the_same_page_wanted_by_many_at_once_is_read_once(objects: Recorded) -> None:
    batch = _batch(0, 100)
    (address,) = _store(objects, "o", batch)
    pages = ObjectPages(objects, PageCache(1 << 20))
    objects.gate.clear()
    read: list[pa.RecordBatch] = []
    threads = [
        threading.Thread(target=lambda: read.append(pages.read(address, TOPIC, SCHEMA)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    objects.gate.set()
    for thread in threads:
        thread.join()
    assert [each.equals(batch) for each in read] == [True] * 8
    assert len(objects.reads) == 1


def test_a_damaged_page_does_not_keep_its_neighbours_from_a_scan(
    objects: Recorded, tmp_path: Path
) -> None:
    batches = [_batch(number, 50) for number in range(4)]
    addresses = _store(objects, "o", *batches)
    data = bytearray((tmp_path / "o").read_bytes())
    data[addresses[2].position + addresses[2].length // 2] ^= 1
    (tmp_path / "o").write_bytes(data)
    pages = ObjectPages(objects, PageCache(1 << 20))
    scan = pages.read_all(addresses, TOPIC, SCHEMA)
    assert next(scan).equals(batches[0])
    assert next(scan).equals(batches[1])
    with pytest.raises(
        StorageCorrupt, match=f"page at byte {addresses[2].position} of o"
    ) as caught:
        next(scan)
    assert (caught.value.folio, caught.value.position) == ("o", addresses[2].position)
    assert pages.read(addresses[3], TOPIC, SCHEMA).equals(batches[3])


def test_an_object_that_was_cut_off_is_readable_up_to_there(
    objects: Recorded, tmp_path: Path
) -> None:
    batches = [_batch(number, 50) for number in range(4)]
    addresses = _store(objects, "o", *batches)
    data = (tmp_path / "o").read_bytes()
    (tmp_path / "o").write_bytes(data[: addresses[2].position + 100])
    scan = ObjectPages(objects, PageCache(1 << 20)).read_all(addresses, TOPIC, SCHEMA)
    assert next(scan).equals(batches[0])
    assert next(scan).equals(batches[1])
    with pytest.raises(StorageCorrupt, match=r"o has \d+ bytes, and should have"):
        next(scan)


def test_the_cache_keeps_no_more_than_its_bound_and_forgets_what_was_unused_for_longest(
    objects: Recorded,
) -> None:
    addresses = [_store(objects, f"o{number}", _batch(number, 200))[0] for number in range(10)]
    cache = PageCache(4 * (addresses[0].length + 20_000))
    pages = ObjectPages(objects, cache)
    for address in addresses:
        pages.read(addresses[0], TOPIC, SCHEMA)
        pages.read(address, TOPIC, SCHEMA)
        assert cache.bytes <= cache.bytes_max
    reads = len(objects.reads)
    pages.read(addresses[0], TOPIC, SCHEMA)
    assert len(objects.reads) == reads
    pages.read(addresses[1], TOPIC, SCHEMA)
    assert len(objects.reads) == reads + 1
    assert cache.counts.hits >= 10
    pages.forget("o1")
    pages.read(addresses[1], TOPIC, SCHEMA)
    assert len(objects.reads) == reads + 2
    cache.clear()
    assert cache.bytes == 0


def test_many_small_reads_of_a_compressed_page_do_not_decode_it_each_time(
    objects: Recorded, compress: Callable[[], None], calls: Calls
) -> None:
    compress()
    batches = [_batch(number, 10_000) for number in range(3)]
    addresses = _store(objects, "o", *batches)
    cache = PageCache(8 * batches[0].nbytes)
    pages = ObjectPages(objects, cache)
    decoded: list[int] = []

    def note(rows: pa.RecordBatch, *_: object) -> None:
        decoded.append(rows.num_columns)

    calls.after(page_cache, "read_page", note)
    for _ in range(5):
        assert pages.read(addresses[0], TOPIC, SCHEMA).equals(batches[0])
        assert pages.read(addresses[0], TOPIC, SCHEMA, [0]).equals(batches[0].select([0]))
    assert sorted(decoded) == [1, 1, len(SCHEMA), len(SCHEMA)]
    reads = len(objects.reads)
    for _ in range(6):  # Nor are the rows of more pages kept than there is room for.
        for address, batch in zip(addresses, batches, strict=True):
            assert pages.read(address, TOPIC, SCHEMA).equals(batch)
            assert cache.bytes <= cache.bytes_max
    assert len(decoded) > 10
    assert len(objects.reads) == reads + 2
    pages.forget("o")
    assert cache.bytes == 0


@pytest.mark.parametrize("damaged", [0, 2])
def test_compressed_pages_come_in_order_up_to_one_that_is_damaged(
    objects: Recorded, tmp_path: Path, compress: Callable[[], None], damaged: int
) -> None:
    compress()
    batches = [_batch(number, 10_000) for number in range(4)]
    addresses = _store(objects, "o", *batches)
    data = bytearray((tmp_path / "o").read_bytes())
    data[addresses[damaged].position + addresses[damaged].length // 2] ^= 1
    (tmp_path / "o").write_bytes(data)
    pages = ObjectPages(objects, PageCache(1 << 30))
    scan = pages.read_all(addresses, TOPIC, SCHEMA)
    for batch in batches[:damaged]:
        assert next(scan).equals(batch)
    with pytest.raises(StorageCorrupt, match=f"page at byte {addresses[damaged].position} of o"):
        next(scan)
    pages.close()


def test_a_scan_whose_store_is_closed_ends(objects: Recorded) -> None:
    addresses = [_store(objects, f"o{number}", _batch(number, 10))[0] for number in range(3)]
    pages = ObjectPages(objects, PageCache(1))
    pages.close()
    with pytest.raises(Unavailable, match="stopping"):
        list(pages.read_all(addresses, TOPIC, SCHEMA))


def test_retries_are_bounded_in_number_and_in_time() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise Unavailable("no")

    with pytest.raises(Unavailable, match="tried 4 times"):
        retry(fail, RetryBounds(attempts_max=4, pause_seconds=0.0))
    assert len(calls) == 4
    calls.clear()
    with pytest.raises(Unavailable, match="tried once"):
        retry(fail, RetryBounds(seconds_max=0.0))
    assert len(calls) == 1


def test_closed_scans_release_what_they_read_ahead(
    objects: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wings_core.storage import object_pages

    monkeypatch.setattr(object_pages, "READ_AHEAD_BYTES_ALL_SCANS", 1)
    addresses = [_store(objects, f"o{number}", _batch(number, 10))[0] for number in range(6)]
    cache = PageCache(1)
    pages = ObjectPages(objects, cache)
    for _ in range(3):
        cache.clear()
        scan = pages.read_all(addresses, TOPIC, SCHEMA)
        objects.reads.clear()
        next(scan)
        assert len(objects.reads) == 1  # Nothing is read ahead beyond the bound of all scans.
        scan.close()  # pyright: ignore[reportAttributeAccessIssue] - a generator
    read = list(pages.read_all(addresses, TOPIC, SCHEMA))
    assert [rows.equals(_batch(number, 10)) for number, rows in enumerate(read)] == [True] * 6
    pages.close()
