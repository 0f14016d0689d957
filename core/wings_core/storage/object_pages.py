"""Reading pages from an object store: by ranges, verified, cached, and read ahead in scans.

Two requests read some columns of a large page: the first reads the header and the message's
metadata, whose length the schema bounds, the second the columns. Small pages are read whole,
neighbours in a folio together. A compressed page is decoded while the reader processes the one
before it.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from wings_core.errors import StorageCorrupt, Unavailable
from wings_core.model import PageAddress
from wings_core.storage.lru import Lru
from wings_core.storage.objects import ObjectStore
from wings_core.storage.objects.interfaces import MERGE_GAP_BYTES
from wings_core.storage.page import PageHead, head_length, head_length_max, parts_of, read_head
from wings_core.storage.page_cache import (
    WHOLE,
    HeldPage,
    PageCache,
    PageKey,
    PrunedPage,
    RowsKey,
    WholePage,
    WrittenPage,
)
from wings_core.storage.parquet_file import (
    ParquetFooter,
    ParquetPage,
    RowGroup,
    is_parquet,
    read_footer,
)

WHOLE_PAGE_BYTES = 256 * 1024
"""Largest page that is read whole whatever columns are wanted: one request instead of two."""

GROUP_BYTES = 8 * 1024 * 1024
"""Most bytes of neighbouring pages in one group, which has at least one page."""


@dataclass(frozen=True, slots=True)
class _PageWish:
    """The columns that a reader wants of each page."""

    topic_uuid: str
    schema: pa.Schema
    columns: tuple[int, ...] | None
    parts: int

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        names = self.schema.names
        return names if self.columns is None else [names[column] for column in self.columns]

    def key(self, address: PageAddress) -> PageKey:
        """Return the key of the parts to read of a page: the whole page if it is small."""
        few = self.columns is not None and 2 * len(set(self.columns)) < len(self.schema)
        pruned = few and address.length > WHOLE_PAGE_BYTES
        return PageKey.of(address, self.parts if pruned else WHOLE)

    def rows_key(self, address: PageAddress) -> RowsKey:
        """Return the key of the decoded rows of a page."""
        return RowsKey(address.folio, address.position, self.columns)


Loaded = Mapping[PageKey, "HeldPage | StorageCorrupt"]


class _ReadStep:
    """The pages of a group in a scan: cached rows, cached bytes, and reads in progress."""

    def __init__(self, group: Sequence[PageAddress], wanted: _PageWish) -> None:
        self.size = sum(address.length for address in group)
        self.group = group
        self.wanted = wanted
        self.rows: dict[PageKey, pa.RecordBatch] = {}
        self.held: dict[PageKey, HeldPage] = {}
        self.loading: dict[PageKey, Future[Loaded]] = {}

    def held_by_now(self, key: PageKey) -> HeldPage | None:
        """Return a page without waiting; None if it is not read yet, or damaged."""
        loading = self.loading.get(key)
        if loading is None:
            return self.held.get(key)
        if not loading.done() or loading.exception() is not None:
            return None
        loaded = loading.result()[key]
        return None if isinstance(loaded, StorageCorrupt) else loaded


def groups_of(addresses: Sequence[PageAddress], wanted: _PageWish) -> Iterator[list[PageAddress]]:
    """Yield groups of neighbouring pages that are read whole; other pages form groups of one."""
    group: list[PageAddress] = []
    size = 0
    for address in addresses:
        if address.position < 0 or address.length <= 0:
            raise StorageCorrupt(
                f"page at byte {address.position} of {address.folio}: no page can have "
                f"{address.length} bytes there",
                folio=address.folio,
                position=address.position,
            )
        if group and not (_joins(group[-1], address, wanted) and size < GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(address)
        size += address.length
    if group:
        yield group


def _joins(last: PageAddress, address: PageAddress, wanted: _PageWish) -> bool:
    """Return whether a page belongs to the same group as the one before it."""
    gap = address.position - last.position - last.length
    whole = wanted.key(last).parts == WHOLE == wanted.key(address).parts
    return whole and last.folio == address.folio and 0 <= gap <= MERGE_GAP_BYTES


READ_AHEAD_BYTES_MAX = 32 * 1024 * 1024
"""Approximate number of bytes that a scan reads ahead."""

READ_AHEAD_GROUPS_MAX = 8
"""Most groups of pages that a scan reads ahead."""

READ_AHEAD_BYTES_ALL_SCANS = 128 * 1024 * 1024
"""Most bytes read ahead by all scans of a store, apart from one group each."""

READERS = 8
"""Threads that read ahead for all scans of a store."""

DECODERS = 2
"""Threads that decode ahead for all scans of a store; unlike the readers, they never wait for the
store. pyarrow decodes the columns of each page in threads of its own."""

DECODED_AHEAD_PAGES_MAX = 2
"""Compressed pages that each scan decodes ahead."""

HEADS_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of cached headers and metadata of partially read pages."""

FOOTERS_BYTES_MAX = 64 * 1024 * 1024
"""Stored bytes of cached footers of Parquet files; parsed, they take more."""


class ObjectPages:
    """A reader of pages of one object store. Thread-safe.

    Args:
        objects: Store of the folios, each an object of its name.
        cache: Cache of pages; may be shared with stores whose folios have other names.
    """

    def __init__(self, objects: ObjectStore, cache: PageCache) -> None:
        self._objects = objects
        self._cache = cache
        self._heads: Lru[tuple[str, int], PageHead] = Lru(HEADS_BYTES_MAX)
        self._footers: Lru[str, ParquetFooter] = Lru(FOOTERS_BYTES_MAX)
        self._loading: dict[PageKey, Future[Loaded]] = {}
        """Reads in progress; concurrent readers of the same page wait for the same future."""
        self._ahead_bytes = 0
        """Bytes read ahead by all scans."""
        self._lock = threading.Lock()
        """Guards the two attributes above; a leaf lock."""
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="wings-page-reader")
        self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="wings-page-decoder")

    def read(
        self,
        address: PageAddress,
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> pa.RecordBatch:
        """Return a page's rows; see `FolioStore.read`."""
        return next(self.read_all([address], topic_uuid, schema, columns))

    def read_all(
        self,
        addresses: Sequence[PageAddress],
        topic_uuid: str,
        schema: pa.Schema,
        columns: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of pages in order, reading ahead; see `FolioStore.read_all`."""
        parts = parts_of(schema, columns)
        wanted = _PageWish(topic_uuid, schema, None if columns is None else tuple(columns), parts)
        groups = deque(groups_of(addresses, wanted))
        if len(groups) == 1:
            yield from self._read_step(self._begin(groups.popleft(), wanted, _run_now))
            return
        ahead: deque[_ReadStep] = deque()
        try:
            while groups or ahead:
                while groups and (not ahead or self._may_read_ahead(ahead)):
                    ahead.append(self._begin(groups.popleft(), wanted, self._run_later))
                    self._count_ahead(ahead[-1].size)
                yield from self._read_step(ahead[0])
                self._count_ahead(-ahead.popleft().size)
        finally:
            self._count_ahead(-sum(step.size for step in ahead))

    def _may_read_ahead(self, ahead: "Sequence[_ReadStep]") -> bool:
        return (
            len(ahead) < READ_AHEAD_GROUPS_MAX
            and sum(step.size for step in ahead) < READ_AHEAD_BYTES_MAX
            and self._ahead_bytes < READ_AHEAD_BYTES_ALL_SCANS
        )

    def _count_ahead(self, size: int) -> None:
        with self._lock:
            self._ahead_bytes += size

    def keep(self, folio: pa.Buffer, addresses: Sequence[PageAddress]) -> None:
        """Cache a new folio for its first readers."""
        pages: dict[PageKey, HeldPage] = {}
        for address in addresses:
            page = folio.slice(address.position, address.length)
            pages[PageKey.of(address, WHOLE)] = WrittenPage(page)
        self._cache.put(pages, folio.size)

    def forget(self, folio: str) -> None:
        """Drop the cached pages of a deleted folio."""
        self._cache.discard(folio)
        self._heads.discard_where(lambda key: key[0] == folio)
        self._footers.discard(folio)

    def close(self) -> None:
        """Stop reading ahead; scans in progress end with Unavailable."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._decoders.shutdown(wait=True)

    def _begin(
        self,
        group: Sequence[PageAddress],
        wanted: _PageWish,
        run: "Callable[[Future[Loaded], Callable[[], Loaded]], None]",
    ) -> "_ReadStep":
        """Start reading the pages of a group that are neither cached nor being read."""
        step = _ReadStep(group, wanted)
        missing: list[PageAddress] = []
        future: Future[Loaded] = Future()
        for address in group:
            key = wanted.key(address)
            rows = self._cache.rows(wanted.rows_key(address))
            if rows is not None:
                step.rows[key] = rows
                continue
            held = self._cache.get(address, key.parts)
            if held is not None:
                step.held[key] = held
                continue
            with self._lock:
                loading = self._loading.setdefault(key, future)
            step.loading[key] = loading
            if loading is future:
                missing.append(address)
        if missing:
            run(future, lambda: self._load(missing, wanted))
        return step

    def _run_later(self, future: "Future[Loaded]", load: Callable[[], Loaded]) -> None:
        def give_up(run: "Future[None]") -> None:
            if run.cancelled():
                future.set_exception(Unavailable("the server is stopping"))

        try:
            self._readers.submit(_run_now, future, load).add_done_callback(give_up)
        except RuntimeError:
            future.set_exception(Unavailable("the server is stopping"))

    def _load(self, addresses: Sequence[PageAddress], wanted: _PageWish) -> Loaded:
        """Read pages of one folio."""
        try:
            if wanted.key(addresses[0]).parts == WHOLE:
                return self._load_whole(addresses, wanted)
            (address,) = addresses
            return self._load_columns(address, wanted)
        finally:
            with self._lock:
                for address in addresses:
                    self._loading.pop(wanted.key(address), None)

    def _load_whole(self, addresses: Sequence[PageAddress], wanted: _PageWish) -> Loaded:
        folio = addresses[0].folio
        ranges = [(each.position, each.position + each.length) for each in addresses]
        try:
            pages = self._objects.read(folio, ranges)
        except StorageCorrupt as error:
            if len(addresses) == 1 or error.facts.get("missing"):
                return dict.fromkeys(map(wanted.key, addresses), error)
            # The object is truncated: the pages before that are complete.
            loaded: dict[PageKey, HeldPage | StorageCorrupt] = {}
            for address in addresses:
                loaded.update(self._load_whole([address], wanted))
            return loaded
        held: dict[PageKey, HeldPage] = {}
        damaged: dict[PageKey, StorageCorrupt] = {}
        for address, page in zip(addresses, pages, strict=True):
            key = wanted.key(address)
            try:
                held[key] = self._whole_page(address, page, wanted)
            except StorageCorrupt as error:
                damaged[key] = error
        if held:
            size = max(end for _, end in ranges) - min(start for start, _ in ranges)
            self._cache.put(held, size + sum(page.extra_bytes for page in held.values()))
        return {**held, **damaged}

    def _whole_page(self, address: PageAddress, page: pa.Buffer, wanted: _PageWish) -> HeldPage:
        if is_parquet(address.folio):
            return ParquetPage.whole(self._row_group(address, wanted), page, wanted.names)
        return WholePage(page, wanted.topic_uuid, wanted.schema, wanted.parts)

    def _load_columns(self, address: PageAddress, wanted: _PageWish) -> Loaded:
        key = wanted.key(address)
        if is_parquet(address.folio):
            return {key: self._load_parquet_columns(address, wanted)}
        try:
            head = self._head(address, wanted)
            columns = sorted(set(wanted.columns or ()))
            # A column of type null has no bytes.
            ranges = {column: head.column(column) for column in columns}
            asked = [
                (address.position + start, address.position + end)
                for start, end in ranges.values()
                if start < end
            ]
            read = iter(self._objects.read(address.folio, asked) if asked else [])
            bytes_of: dict[int, pa.Buffer] = {}
            for column, (start, end) in ranges.items():
                bytes_of[column] = next(read) if start < end else pa.py_buffer(b"")
                head.verify_column(column, memoryview(bytes_of[column]), wanted.schema)
            page = PrunedPage(head, wanted.topic_uuid, wanted.schema, bytes_of)
        except StorageCorrupt as error:
            return {key: error}
        size = sum(part.size for part in bytes_of.values())
        self._cache.put({key: page}, size + page.extra_bytes)
        return {key: page}

    def _load_parquet_columns(
        self, address: PageAddress, wanted: _PageWish
    ) -> "HeldPage | StorageCorrupt":
        try:
            group = self._row_group(address, wanted)
            names = list(dict.fromkeys(wanted.names))
            ranges = [group.extent(name) for name in names]
            read = self._objects.read(address.folio, ranges) if ranges else []
            page = ParquetPage(group, dict(zip(names, read, strict=True)), ())
            page.verify(names)
        except StorageCorrupt as error:
            return error
        self._cache.put({wanted.key(address): page}, sum(part.size for part in read))
        return page

    def _read_step(self, step: _ReadStep) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each page of a step; blocks until each is read."""
        reads: deque[Callable[[], pa.RecordBatch]] = deque()
        for number, address in enumerate(step.group):
            if not reads:
                reads.append(self._begin_read(address, step))
            try:
                rows = reads.popleft()()
            except StorageCorrupt as error:
                raise StorageCorrupt(
                    f"page at byte {address.position} of {address.folio}: {error.message}",
                    **{**error.facts, "folio": address.folio, "position": address.position},
                ) from error
            begun = number + 1 + len(reads)
            for following in step.group[begun : number + 1 + DECODED_AHEAD_PAGES_MAX]:
                reads.append(self._begin_read(following, step))
            yield rows

    def _begin_read(self, address: PageAddress, step: _ReadStep) -> "Callable[[], pa.RecordBatch]":
        """Start decoding a compressed page whose bytes are present.

        Returns:
            A function that waits for the rows and returns them, or raises the error.
        """
        key = step.wanted.key(address)
        rows = step.rows.get(key)
        if rows is not None:
            return lambda: rows
        read = partial(self._read_held, address, step)
        held = step.held_by_now(key)
        if held is None or not held.is_compressed or len(step.group) == 1:
            return read
        try:
            return self._decoders.submit(read).result
        except RuntimeError:
            return read  # The server is stopping.

    def _read_held(self, address: PageAddress, step: _ReadStep) -> pa.RecordBatch:
        """Wait for the bytes of a page, and decode them."""
        wanted = step.wanted
        key = wanted.key(address)
        held = step.held.get(key) or step.loading[key].result()[key]
        try:
            rows = _rows_of(held, wanted)
        except StorageCorrupt:
            if isinstance(held, StorageCorrupt):
                raise
            # These columns were not verified before; the stored bytes may be sound.
            held = self._read_again(address, wanted)
            rows = _rows_of(held, wanted)
        assert not isinstance(held, StorageCorrupt), "it has no rows"
        if held.is_compressed:
            self._cache.keep_rows(wanted.rows_key(address), rows)
        return rows

    def _read_again(self, address: PageAddress, wanted: _PageWish) -> "HeldPage | StorageCorrupt":
        """Read a page again that was damaged in memory or in transfer."""
        key = wanted.key(address)
        self._cache.discard_page(address, key.parts)
        self._heads.discard((address.folio, address.position))
        self._footers.discard(address.folio)
        return self._load([address], wanted)[key]

    def _row_group(self, address: PageAddress, wanted: _PageWish) -> RowGroup:
        """Return the row group of a page, from the Parquet file's footer."""
        footer = self._footers.get(address.folio)
        if footer is None:
            footer = read_footer(
                lambda start, end: self._objects.read(address.folio, [(start, end)])[0],
                self._objects.size(address.folio),
            )
            self._footers.put(address.folio, footer, footer.weight)
        return footer.row_group(address.position, address.length, wanted.topic_uuid)

    def _head(self, address: PageAddress, wanted: _PageWish) -> PageHead:
        """Return a page's header and metadata, cached or read."""
        name, uuid = (address.folio, address.position), wanted.topic_uuid
        known = self._heads.get(name)
        if known is not None:
            return known
        start = address.position
        length = min(address.length, head_length_max(uuid, wanted.schema))
        (data,) = self._objects.read(address.folio, [(start, start + length)])
        needed = head_length(memoryview(data), address.length, uuid)
        if needed > length:
            (data,) = self._objects.read(address.folio, [(start, start + needed)])
        head = read_head(memoryview(data), address.length, uuid, wanted.schema)
        self._heads.put(name, head, len(head.metadata) + 100 * len(wanted.schema))
        return head


def _rows_of(held: "HeldPage | StorageCorrupt", wanted: _PageWish) -> pa.RecordBatch:
    if isinstance(held, StorageCorrupt):
        raise held
    return held.read(wanted.topic_uuid, wanted.schema, wanted.columns)


def _run_now(future: "Future[Loaded]", load: Callable[[], Loaded]) -> None:
    try:
        future.set_result(load())
    except BaseException as error:  # noqa: BLE001 - raised to the readers that wait
        future.set_exception(error)
