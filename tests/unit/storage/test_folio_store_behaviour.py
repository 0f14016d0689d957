"""The behaviour of every folio store: local segments, and object stores."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from pages import encode_page

from wings_core.errors import StorageCorrupt, WingsError
from wings_core.model import PageAddress
from wings_core.storage.folio_stores import FOLIO_SUFFIX, FolioStores, ObjectFolioStore
from wings_core.storage.interfaces import EncodedPage, FolioStore
from wings_core.storage.objects import open_objects
from wings_core.storage.page_cache import PageCache
from wings_core.storage.segments import SegmentStore

TOPIC = "0123456789abcdef0123456789abcdef"
WIDE = 40
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("text", pa.string()),
        ("list", pa.list_(pa.struct([("a", pa.int16()), ("b", pa.large_string())]))),
        ("nothing", pa.null()),
        ("flag", pa.bool_()),
        *((f"c{index}", pa.float64()) for index in range(WIDE)),
    ]
)

OpenStore = Callable[[], FolioStore]


@cache
def _rows() -> pa.RecordBatch:
    numbers = list(range(12_000))
    columns: list[pa.Array[pa.Scalar[pa.DataType]]] = [
        pa.array(numbers),
        pa.array([None if number % 5 == 0 else f"text {number}" for number in numbers]),
        pa.array(
            [[{"a": number % 100, "b": "x" * (number % 7)}] * (number % 3) for number in numbers],
            SCHEMA.field("list").type,
        ),
        pa.nulls(len(numbers)),
        pa.array([number % 2 == 0 for number in numbers]),
        *(pa.array(range(index, index + len(numbers)), pa.float64()) for index in range(WIDE)),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def _batch(start: int, rows: int = 3) -> pa.RecordBatch:
    return _rows().slice(start, rows)


def _page(start: int, rows: int = 3) -> EncodedPage:
    return encode_page(_batch(start, rows), TOPIC)


@pytest.fixture(params=["segments", "directory", "s3", "several"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Return a function that opens a store on the same place, with nothing in memory."""
    url = request.getfixturevalue("s3_url") if request.param == "s3" else str(tmp_path / "objects")
    stores: list[FolioStore] = []

    def make() -> FolioStore:
        segments = SegmentStore(tmp_path / "segments", segment_bytes_max=1)
        hot = ObjectFolioStore(open_objects(url), PageCache(1 << 20), grace_seconds=-60)
        several = FolioStores(segments, {FOLIO_SUFFIX: hot}, hot)
        kinds: dict[str, FolioStore] = {"segments": segments, "several": several}
        stores.append(kinds.get(request.param, hot))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.mark.parametrize("fresh", [False, True])
def test_pages_are_read_as_they_were_written(open_store: OpenStore, fresh: bool) -> None:
    store = open_store()
    addresses = store.write([_page(0), _page(10, rows=0), _page(20, rows=5_000)])
    reader = open_store() if fresh else store
    for address, batch in zip(
        addresses, [_batch(0), _batch(10, rows=0), _batch(20, rows=5_000)], strict=True
    ):
        assert reader.read(address, TOPIC, SCHEMA).equals(batch)


@pytest.mark.parametrize("rows", [3, 0, 5_000])  # The last: 1.9 MB, of which a part is read.
@pytest.mark.parametrize("fresh", [False, True])
def test_some_columns_are_read_in_the_order_asked(
    open_store: OpenStore, rows: int, fresh: bool
) -> None:
    store = open_store()
    _, address = store.write([_page(0), _page(1, rows)])
    reader = open_store() if fresh else store
    for columns in ([2, 0], [1], [44, 5, 3], [3], [], [0, 0], list(range(len(SCHEMA)))):
        read = reader.read(address, TOPIC, SCHEMA, columns)
        expected = _batch(1, rows).select(columns)
        assert read.schema == expected.schema
        assert read.equals(expected)
        assert read.num_rows == rows
        read.validate(full=True)
        assert reader.read(address, TOPIC, SCHEMA, columns).equals(expected)  # From memory.


@pytest.mark.parametrize("columns", [None, [0], [1, 2]])
def test_many_pages_come_in_the_order_asked(
    open_store: OpenStore, columns: list[int] | None
) -> None:
    store = open_store()
    starts = list(range(0, 10_000, 500))
    addresses: list[PageAddress] = []
    for some in (starts[:5], starts[5:6], starts[6:]):
        addresses += store.write([_page(start, 1_000) for start in some])
    order = [*range(len(starts)), 3, 1, 19, 3]
    read = open_store().read_all([addresses[place] for place in order], TOPIC, SCHEMA, columns)
    for place, rows in zip(order, read, strict=True):
        expected = _batch(starts[place], 1_000)
        assert rows.equals(expected if columns is None else expected.select(columns))


def test_nothing_is_written_for_an_empty_flush(open_store: OpenStore) -> None:
    store = open_store()
    assert store.write([]) == []
    assert store.folios() == set()


def test_folios_are_listed_but_for_the_last(open_store: OpenStore) -> None:
    store = open_store()
    assert store.folios() == set()
    first, second, last = (store.write([_page(number)])[0].folio for number in range(3))
    assert store.folios() == {first, second}
    assert last not in store.folios()


def test_a_deleted_folio_is_gone_and_the_others_stay(open_store: OpenStore) -> None:
    store = open_store()
    first, second, third = (store.write([_page(number)])[0] for number in range(3))
    held = store.read(first, TOPIC, SCHEMA)
    store.delete(first.folio)
    store.delete(first.folio)
    assert store.folios() == {second.folio}
    assert held.equals(_batch(0))
    with pytest.raises(StorageCorrupt, match="missing"):
        store.read(first, TOPIC, SCHEMA)
    assert store.read(third, TOPIC, SCHEMA).equals(_batch(2))


def test_a_folio_of_another_kind_is_not_deleted(open_store: OpenStore) -> None:
    with pytest.raises(WingsError):
        open_store().delete("../../etc/passwd")


def test_a_page_of_another_topic_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    small, large = store.write([_page(0), _page(1, 5_000)])
    for address in (small, large):
        for columns in (None, [1]):
            assert store.read(address, TOPIC, SCHEMA, columns).num_rows
            with pytest.raises(StorageCorrupt, match="belongs to topic"):
                store.read(address, "f" * 32, SCHEMA, columns)


def test_an_address_that_cannot_be_is_named(open_store: OpenStore) -> None:
    store = open_store()
    (address,) = store.write([_page(0)])
    for position, length in (
        (address.position, 0),
        (-64, 64),
        (address.length, 64),
        (1 << 40, 64),
        (0, 1 << 40),
        (8, address.length - 8),
    ):
        wrong = PageAddress(address.folio, position, length)
        with pytest.raises(StorageCorrupt, match=f"page at byte {position} of") as caught:
            store.read(wrong, TOPIC, SCHEMA)
        assert (caught.value.folio, caught.value.position) == (address.folio, position)
