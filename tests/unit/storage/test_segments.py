from __future__ import annotations

import errno
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from fix_calls import Calls
from pages import encode_page
from tables import each

from wings_core.errors import Internal, ResourceExhausted, StorageCorrupt
from wings_core.model import PageAddress
from wings_core.storage import segments
from wings_core.storage.files import BUFFERS_MAX
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.page import PAGE_ALIGNMENT
from wings_core.storage.segments import SEGMENT_NAME, SegmentStore

if TYPE_CHECKING:
    from fix_storage import FaultyFiles, MakeStore

TOPIC = "0d4dd6e4-3c0b-4f6f-9d3e-3b7f7a2f1c55"
SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])


def _batch(first: int, rows: int = 3) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    return pa.record_batch(
        [pa.array(numbers, pa.int64()), pa.array([f"row {number}" for number in numbers])],
        schema=SCHEMA,
    )


def _page(first: int, rows: int = 3) -> EncodedPage:
    return encode_page(_batch(first, rows), TOPIC)


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _read(store: SegmentStore, address: PageAddress) -> pa.RecordBatch:
    return store.read(address, TOPIC, SCHEMA)


@pytest.fixture(scope="module", autouse=True)
def nothing_older_to_collect() -> None:
    """Have `_descriptors` look at what the tests here made alone, of all that a run has."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "segments"


def test_pages_of_a_flush_are_read_back(make_store: MakeStore, directory: Path) -> None:
    store = make_store()
    addresses = store.write([_page(0), _page(10, rows=0), _page(20)])
    assert [_read(store, address) for address in addresses] == [
        _batch(0),
        _batch(10, rows=0),
        _batch(20),
    ]
    (file,) = directory.iterdir()
    assert SEGMENT_NAME.fullmatch(file.name)
    assert all(address.folio == file.name for address in addresses)
    assert all(address.position % PAGE_ALIGNMENT == 0 for address in addresses)
    assert file.stat().st_size == sum(address.length for address in addresses)


def test_a_flush_without_pages_writes_nothing(make_store: MakeStore, directory: Path) -> None:
    assert make_store().write([]) == []
    assert not directory.exists()


def test_only_the_columns_asked_for_are_read_in_their_order(make_store: MakeStore) -> None:
    store = make_store()
    (address,) = store.write([_page(0)])
    batch = store.read(address, TOPIC, SCHEMA, [1, 0])
    assert batch.schema.names == ["text", "number"]
    assert batch.column(1).equals(_batch(0).column(0))
    assert store.read(address, TOPIC, SCHEMA, []).num_rows == 3


def test_flushes_share_a_segment_until_the_next_would_pass_its_limit(
    make_store: MakeStore, directory: Path
) -> None:
    length = _page(0).length
    store = make_store(segment_bytes_max=3 * length)
    addresses = [store.write([_page(number)])[0] for number in range(7)]
    folios = [address.folio for address in addresses]
    assert [folios.index(folio) for folio in folios] == [0, 0, 0, 3, 3, 3, 6]
    assert sorted(set(folios)) == sorted(file.name for file in directory.iterdir())
    assert max(file.stat().st_size for file in directory.iterdir()) == 3 * length
    assert [_read(store, address) for address in addresses] == [_batch(n) for n in range(7)]


def test_a_flush_larger_than_a_segment_gets_one_for_itself(make_store: MakeStore) -> None:
    store = make_store(segment_bytes_max=1)
    first = store.write([_page(0), _page(1)])
    second = store.write([_page(2)])
    assert first[0].folio == first[1].folio != second[0].folio
    assert [_read(store, address) for address in first + second] == [_batch(n) for n in range(3)]


def test_a_flush_of_more_pages_than_one_system_call_takes(
    make_store: MakeStore, faulty_files: FaultyFiles
) -> None:
    store = make_store(segment_bytes_max=1 << 30, files=faulty_files)
    pages = [_page(number) for number in range(BUFFERS_MAX)]
    addresses = store.write(pages)
    assert faulty_files.writes > 1
    assert _read(store, addresses[0]) == _batch(0)
    assert [_read(store, address) for address in addresses] == [
        _batch(number) for number in range(BUFFERS_MAX)
    ]


@pytest.mark.parametrize("taken", [1, 63, 64, 1000])
def test_short_writes_are_continued(
    make_store: MakeStore, faulty_files: FaultyFiles, taken: int
) -> None:
    store = make_store(files=faulty_files)
    faulty_files.written_max = taken
    addresses = store.write([_page(0), _page(1)]) + store.write([_page(2)])
    assert [_read(store, address) for address in addresses] == [_batch(n) for n in range(3)]


def test_a_new_process_begins_a_new_segment(make_store: MakeStore, directory: Path) -> None:
    before_it = make_store()
    (old,) = before_it.write([_page(0)])
    before_it.close()
    store = make_store()
    assert store.folios() == {old.folio}
    before = (directory / old.folio).read_bytes()
    (new,) = store.write([_page(1)])
    assert new.folio != old.folio
    assert (directory / old.folio).read_bytes() == before
    assert _read(store, old) == _batch(0)


def test_the_folio_being_written_to_is_not_listed(make_store: MakeStore, directory: Path) -> None:
    store = make_store()
    assert store.folios() == set()
    (address,) = store.write([_page(0)])
    (directory / "a foreign file").touch()
    assert store.folios() == set()
    store.close()
    assert store.folios() == {address.folio}


def test_a_folio_is_listed_once_the_next_is_begun(make_store: MakeStore) -> None:
    store = make_store(segment_bytes_max=1)
    (first,) = store.write([_page(0)])
    store.write([_page(1)])
    assert store.folios() == {first.folio}


def test_rows_stay_readable_after_delete_and_close(make_store: MakeStore, directory: Path) -> None:
    store = make_store(segment_bytes_max=1, open_segments_max=1)
    (address,) = store.write([_page(0, rows=10_000)])
    (other,) = store.write([_page(1)])
    batch = _read(store, address)
    store.delete(address.folio)
    assert not (directory / address.folio).exists()
    _read(store, other)
    store.close()
    gc.collect()
    assert batch == _batch(0, rows=10_000)
    with pytest.raises(StorageCorrupt, match="missing"):
        _read(store, address)


def test_deleting_a_folio_that_is_gone_is_no_error(make_store: MakeStore) -> None:
    store = make_store(segment_bytes_max=1)
    (address,) = store.write([_page(0)])
    store.write([_page(1)])
    store.delete(address.folio)
    store.delete(address.folio)
    assert store.folios() == set()


def test_the_folio_being_written_to_cannot_be_deleted(make_store: MakeStore) -> None:
    store = make_store()
    (address,) = store.write([_page(0)])
    with pytest.raises(Internal):
        store.delete(address.folio)
    assert _read(store, address) == _batch(0)


def test_a_name_that_is_no_segment_is_neither_read_nor_deleted(
    make_store: MakeStore, tmp_path: Path
) -> None:
    store = make_store()
    store.write([_page(0)])
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(1000))
    with pytest.raises(StorageCorrupt, match="not the name of a segment"):
        _read(store, PageAddress("../outside", 0, 640))
    with pytest.raises(Internal):
        store.delete("../outside")
    assert outside.exists()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errno.ENOSPC, ResourceExhausted),
        (errno.EDQUOT, ResourceExhausted),
        (errno.EIO, Internal),
        (errno.EROFS, Internal),
    ],
)
@pytest.mark.parametrize(
    ("operation", "flushes_before"),
    [("create", 0), ("sync_directory", 0), ("write", 0), ("write", 1), ("sync", 0), ("sync", 1)],
)
def test_a_failed_flush_leaves_nothing_and_the_next_goes_elsewhere(
    make_store: MakeStore,
    faulty_files: FaultyFiles,
    directory: Path,
    operation: str,
    error: int,
    expected: type[Exception],
    flushes_before: int,
) -> None:
    directory.mkdir()
    store = make_store(files=faulty_files)
    kept = [store.write([_page(number)])[0] for number in range(flushes_before)]
    sizes = {file.name: file.stat().st_size for file in directory.iterdir()}
    faulty_files.fail(operation, error)
    with pytest.raises(expected, match=os.strerror(error)) as raised:
        store.write([_page(100), _page(101)])
    assert ("the disk is full" in str(raised.value)) == (expected is ResourceExhausted)
    assert {file.name: file.stat().st_size for file in directory.iterdir()} == sizes
    (address,) = store.write([_page(200)])
    assert address.folio not in sizes
    assert store.folios() == set(sizes)
    assert [_read(store, one) for one in kept] == [_batch(n) for n in range(flushes_before)]
    assert _read(store, address) == _batch(200)


def test_a_write_that_takes_nothing_is_an_error(
    make_store: MakeStore, faulty_files: FaultyFiles
) -> None:
    store = make_store(files=faulty_files)
    faulty_files.written_max = 0
    with pytest.raises(Internal, match="nothing was written"):
        store.write([_page(0)])


def test_a_full_disk_in_the_middle_of_a_flush_gives_the_room_back(
    make_store: MakeStore, faulty_files: FaultyFiles, directory: Path
) -> None:
    store = make_store(files=faulty_files)
    (kept,) = store.write([_page(0)])
    faulty_files.written_max = 100
    faulty_files.fail("write", errno.ENOSPC, after=3)
    with pytest.raises(ResourceExhausted):
        store.write([_page(1)])
    assert (directory / kept.folio).stat().st_size == kept.length
    with pytest.raises(StorageCorrupt, match="should end at"):
        _read(store, PageAddress(kept.folio, kept.length, kept.length))


def test_the_file_size_limit_of_a_process_is_like_a_full_disk(
    make_store: MakeStore, faulty_files: FaultyFiles
) -> None:
    # Such a limit also forbids to make the file as long as its map for a moment.
    store = make_store(files=faulty_files)
    faulty_files.fail("write", errno.EFBIG)
    with pytest.raises(ResourceExhausted):
        store.write([_page(0)])


def test_reads_work_where_a_segment_cannot_be_mapped_ahead(
    make_store: MakeStore, faulty_files: FaultyFiles, calls: Calls
) -> None:
    calls.fail(faulty_files, "truncate", OSError(errno.EFBIG, os.strerror(errno.EFBIG)))
    store = make_store(files=faulty_files)
    for number in range(20):
        (address,) = store.write([_page(number)])
        assert _read(store, address) == _batch(number)


def test_the_active_segment_is_read_after_its_map_was_given_up(make_store: MakeStore) -> None:
    length = _page(0).length
    store = make_store(segment_bytes_max=2 * length, open_segments_max=1)
    (old,) = store.write([_page(0)])
    store.write([_page(1)])
    (early,) = store.write([_page(2)])
    assert _read(store, old) == _batch(0)
    assert _read(store, early) == _batch(2)
    (late,) = store.write([_page(3)])
    assert early.folio == late.folio
    assert _read(store, late) == _batch(3)


def _flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_a_flipped_byte_names_its_page_and_spares_the_neighbours(
    make_store: MakeStore, directory: Path
) -> None:
    first, second, third = make_store().write([_page(0), _page(1), _page(2)])
    _flip(directory / second.folio, second.position + 300)
    store = make_store()
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match=second.folio) as raised:
            _read(store, second)
        assert raised.value.folio == second.folio
        assert raised.value.position == second.position
    assert _read(store, first) == _batch(0)
    assert _read(store, third) == _batch(2)


def test_a_flip_in_one_column_leaves_the_other_readable(
    make_store: MakeStore, directory: Path
) -> None:
    (address,) = make_store().write([_page(0)])
    data = (directory / address.folio).read_bytes()
    _flip(directory / address.folio, data.index(b"row 0row 1"))
    store = make_store()
    assert store.read(address, TOPIC, SCHEMA, [0]).column(0).equals(_batch(0).column(0))
    with pytest.raises(StorageCorrupt, match="'text'"):
        store.read(address, TOPIC, SCHEMA, [1])
    with pytest.raises(StorageCorrupt, match="'text'"):
        _read(store, address)
    assert store.read(address, TOPIC, SCHEMA, [0]).column(0).equals(_batch(0).column(0))


def test_a_page_asked_for_as_another_topics_is_refused_also_when_verified(
    make_store: MakeStore,
) -> None:
    store = make_store()
    (address,) = store.write([_page(0)])
    _read(store, address)
    with pytest.raises(StorageCorrupt, match="belongs to topic"):
        store.read(address, "f" * 32, SCHEMA)


def test_a_page_read_again_is_not_decoded_again(make_store: MakeStore) -> None:
    store = make_store()
    (address,) = store.write([_page(0)])
    first = _read(store, address)
    assert _read(store, address) is first
    assert store.read(address, TOPIC, SCHEMA, [1]).column(0).equals(first.column(1))
    # A schema that is equal and another object may have other metadata.
    assert _read(store, address) == store.read(address, TOPIC, pa.schema(list(SCHEMA)))


def test_a_deleted_segment_is_not_held_open_by_rows_read_before(make_store: MakeStore) -> None:
    store = make_store(segment_bytes_max=1)
    addresses = [store.write([_page(number)])[0] for number in range(3)]
    before = _descriptors()
    for address in addresses[:2]:
        assert _read(store, address).num_rows == 3
        store.delete(address.folio)
    assert _descriptors() <= before - 2


def test_a_segment_that_another_process_writes_to_takes_one_descriptor_however_it_grows(
    make_store: MakeStore,
) -> None:
    writer, reader = make_store(), make_store()
    (address,) = writer.write([_page(0)])
    assert _read(reader, address) == _batch(0)
    before = _descriptors()
    for number in range(1, 20):
        (address,) = writer.write([_page(number)])
        assert _read(reader, address) == _batch(number)
    assert _descriptors() == before


def test_the_active_segment_takes_one_descriptor_after_its_map_was_given_up(
    make_store: MakeStore,
) -> None:
    store = make_store(segment_bytes_max=20 * _page(0).length, open_segments_max=1)
    (old,) = store.write([_page(0, rows=1_000)])
    store.write([_page(0)])
    assert _read(store, old) == _batch(0, rows=1_000)
    before = _descriptors()
    for number in range(1, 10):
        (address,) = store.write([_page(number)])
        assert _read(store, address) == _batch(number)
    assert _descriptors() == before


def test_a_segment_that_another_process_deleted_is_not_held_open_once_folios_are_listed(
    make_store: MakeStore,
) -> None:
    writer, reader = make_store(), make_store()
    (address,) = writer.write([_page(0)])
    writer.close()
    before = _descriptors()
    assert _read(reader, address) == _batch(0)
    assert _descriptors() == before + 1
    writer.delete(address.folio)
    assert reader.folios() == set()
    assert _descriptors() == before


def test_a_segment_deleted_while_a_page_is_verified_is_not_held_open(
    make_store: MakeStore, calls: Calls
) -> None:
    store = make_store()
    (address,) = store.write([_page(0)])
    store.close()
    before = _descriptors()
    calls.after(segments, "verify_page", lambda *_: store.delete(address.folio))
    assert _read(store, address) == _batch(0)
    assert _descriptors() == before


@pytest.mark.parametrize("closed", [False, True])
def test_a_truncated_segment_is_found_also_while_it_is_mapped(
    make_store: MakeStore, directory: Path, closed: bool
) -> None:
    store = make_store()
    addresses = store.write([_page(number, rows=1000) for number in range(3)])
    if closed:
        store.close()
    assert [_read(store, address).num_rows for address in addresses] == [1000] * 3
    for lost, address in ((2, addresses[2]), (1, addresses[1]), (0, addresses[0])):
        for cut in (address.length - 1, 100, 0):
            os.truncate(directory / address.folio, address.position + cut)
            with pytest.raises(StorageCorrupt, match=address.folio):
                _read(store, address)
        for kept in addresses[:lost]:
            assert _read(store, kept).num_rows == 1000


@pytest.mark.parametrize("length", [0, 1, 700])
def test_a_segment_truncated_before_it_is_mapped_is_found(
    make_store: MakeStore, directory: Path, length: int
) -> None:
    (address,) = make_store().write([_page(0)])
    os.truncate(directory / address.folio, min(length, address.length - 1))
    with pytest.raises(StorageCorrupt, match=address.folio):
        _read(make_store(), address)


@each("moved", [-(1 << 20), -64, 0, 64, 1 << 62])
@each("longer", [-(1 << 20), 0, 64, 1 << 62])
def test_an_address_that_is_not_a_pages_is_corrupt(
    make_store: MakeStore, moved: int, longer: int
) -> None:
    store = make_store()
    _, page, _ = store.write([_page(0), _page(1), _page(2)])
    assert _read(store, page) == _batch(1)
    if moved or longer:
        with pytest.raises(StorageCorrupt):
            _read(store, PageAddress(page.folio, page.position + moved, page.length + longer))
    with pytest.raises(StorageCorrupt):
        _read(store, PageAddress(page.folio, page.position, 0))


def test_a_segment_that_cannot_be_opened_is_an_error_of_the_disk(
    make_store: MakeStore, directory: Path
) -> None:
    (address,) = make_store().write([_page(0)])
    (directory / address.folio).unlink()
    (directory / address.folio).symlink_to(address.folio)
    with pytest.raises(Internal, match="could not open"):
        _read(make_store(), address)


def test_maps_and_descriptors_stay_within_their_bound(make_store: MakeStore) -> None:
    store = make_store(segment_bytes_max=1, open_segments_max=3)
    addresses = [store.write([_page(number)])[0] for number in range(30)]
    store.close()
    before = _descriptors()
    for _ in range(2):
        for number, address in enumerate(addresses):
            assert _read(store, address) == _batch(number)
    assert _descriptors() <= before + 3


def test_threads_read_all_pages_while_the_segments_grow(make_store: MakeStore) -> None:
    store = make_store(segment_bytes_max=50 * _page(0).length, open_segments_max=2)
    flushes = 300
    written: list[PageAddress] = []
    more = threading.Condition()
    problems: list[BaseException] = []

    def read_along(step: int) -> None:
        try:
            for number in range(0, flushes, step):
                with more:
                    more.wait_for(lambda number=number: len(written) > number)
                assert _read(store, written[number]) == _batch(number)
                assert _read(store, written[number // 2]) == _batch(number // 2)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            problems.append(error)

    readers = [threading.Thread(target=read_along, args=(step,)) for step in (1, 1, 3, 7)]
    for reader in readers:
        reader.start()
    for number in range(flushes):
        addresses = store.write([_page(number)])
        with more:
            written.extend(addresses)
            more.notify_all()
    for reader in readers:
        reader.join()
    assert problems == []


def test_a_segment_that_another_process_writes_to_is_not_listed_until_that_is_finished(
    make_store: MakeStore,
) -> None:
    writer, other = make_store(), make_store()
    (address,) = writer.write([_page(0)])
    assert _read(other, address) == _batch(0)
    assert other.folios() == set()
    writer.close()
    assert other.folios() == {address.folio}


def test_segments_of_several_writers_have_names_of_their_own(make_store: MakeStore) -> None:
    stores = [make_store() for _ in range(8)]
    addresses = [store.write([_page(number)])[0] for number, store in enumerate(stores)]
    assert len({address.folio for address in addresses}) == 8
    assert [_read(stores[0], address) for address in addresses] == [_batch(n) for n in range(8)]


def test_a_segment_is_not_listed_within_the_grace_of_its_last_flush(
    make_store: MakeStore, directory: Path
) -> None:
    store, other = make_store(), make_store(grace_seconds=300.0)
    (address,) = store.write([_page(0)])
    store.close()
    assert other.folios() == set()
    long_ago = time.time() - 301
    os.utime(directory / address.folio, (long_ago, long_ago))
    assert other.folios() == {address.folio}


def test_a_new_segment_that_another_process_deleted_at_once_refuses_the_flush(
    make_store: MakeStore, faulty_files: FaultyFiles, calls: Calls
) -> None:
    """Between its creation and its lock it looks like one that was left over."""
    store = make_store(files=faulty_files)

    def lose(_: int, path: Path) -> None:
        path.unlink()

    calls.after(faulty_files, "create", lose, times=1)
    with pytest.raises(Internal, match="another process deleted"):
        store.write([_page(0)])
    (address,) = store.write([_page(1)])
    assert _read(store, address) == _batch(1)


def test_readers_that_come_together_decode_a_page_once(make_store: MakeStore, calls: Calls) -> None:
    store = make_store()
    (address,) = store.write([_page(0)])
    decoded = calls.heard(segments, "read_page")

    def wait(*_: object) -> None:
        time.sleep(0.1)  # Long enough for all to come, were they not made to wait.

    calls.before(segments, "verify_page", wait)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(partial(_read, store), [address] * 8))
    assert found == [_batch(0)] * 8
    assert len(decoded) == 1
