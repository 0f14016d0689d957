"""Pages out of an object store: by ranges, verified, cached, and read ahead on a scan.

Of a large page of which some columns are wanted, two requests read what is needed: the header and
the message's metadata, whose length the schema bounds, and then the columns' bytes. Small pages are
read whole, neighbours of one folio together. A compressed page is decoded while the reader is busy
with the one before it.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa

from wings_core.errors import StorageCorrupt, Unavailable
from wings_core.model import PageAddress
from wings_core.storage.held_page import HeldPage, PrunedPage, WholePage, WrittenPage
from wings_core.storage.lru import Lru
from wings_core.storage.objects import ObjectStore
from wings_core.storage.page import PageHead, head_length, head_length_max, parts_of, read_head
from wings_core.storage.page_cache import WHOLE, PageCache, PageKey
from wings_core.storage.page_groups import Loaded, Step, Wanted, groups_of
from wings_core.storage.parquet_file import ParquetFooter, RowGroup, is_parquet, read_footer
from wings_core.storage.parquet_page import ParquetPage

READ_AHEAD_BYTES_MAX = 32 * 1024 * 1024
"""A scan reads so far ahead of its reader, about."""

READ_AHEAD_GROUPS_MAX = 8
"""Nor more groups of pages than this."""

READ_AHEAD_BYTES_ALL_SCANS = 128 * 1024 * 1024
"""All scans of a store together hold no more of what they read ahead, and a group each."""

READERS = 8
"""Threads that read ahead, for all scans of a store together."""

DECODERS = 2
"""Threads that decode ahead, for all scans of a store together: they never wait for the store, as
all readers may. pyarrow decodes the columns of each page in threads of its own."""

DECODED_AHEAD_PAGES_MAX = 2
"""Compressed pages that are decoded while the reader is busy with the one before, for each scan."""

HEADS_BYTES_MAX = 16 * 1024 * 1024
"""Headers and metadata kept of pages of which only some columns were read."""

FOOTERS_BYTES_MAX = 64 * 1024 * 1024
"""Kept of the footers of Parquet files, in bytes as they are stored; parsed, they take more."""


class ObjectPages:
    """Reads pages of one object store; all methods may be called from any thread.

    Args:
        objects: Where folios are objects, each of its own name.
        cache: May be shared with other stores whose folios have other names.
    """

    def __init__(self, objects: ObjectStore, cache: PageCache) -> None:
        self._objects = objects
        self._cache = cache
        self._heads: Lru[tuple[str, int], PageHead] = Lru(HEADS_BYTES_MAX)
        self._footers: Lru[str, ParquetFooter] = Lru(FOOTERS_BYTES_MAX)
        self._loading: dict[PageKey, Future[Loaded]] = {}
        """What is being read: who wants it too waits for it instead of reading it again."""
        self._ahead_bytes = 0
        """Of all scans."""
        self._lock = threading.Lock()
        """Of the two; nothing else is locked under it."""
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
        """Yield the rows of pages in their order, and read ahead; see `FolioStore.read_all`."""
        parts = parts_of(schema, columns)
        wanted = Wanted(topic_uuid, schema, None if columns is None else tuple(columns), parts)
        groups = deque(groups_of(addresses, wanted))
        if len(groups) == 1:
            yield from self._read_step(self._begin(groups.popleft(), wanted, _run_now))
            return
        ahead: deque[Step] = deque()
        try:
            while groups or ahead:
                while groups and (not ahead or self._may_read_ahead(ahead)):
                    ahead.append(self._begin(groups.popleft(), wanted, self._run_later))
                    self._count_ahead(ahead[-1].size)
                yield from self._read_step(ahead[0])
                self._count_ahead(-ahead.popleft().size)
        finally:
            self._count_ahead(-sum(step.size for step in ahead))

    def _may_read_ahead(self, ahead: "Sequence[Step]") -> bool:
        return (
            len(ahead) < READ_AHEAD_GROUPS_MAX
            and sum(step.size for step in ahead) < READ_AHEAD_BYTES_MAX
            and self._ahead_bytes < READ_AHEAD_BYTES_ALL_SCANS
        )

    def _count_ahead(self, size: int) -> None:
        with self._lock:
            self._ahead_bytes += size

    def keep(self, folio: pa.Buffer, addresses: Sequence[PageAddress]) -> None:
        """Keep a folio that was just written, for its first readers."""
        pages: dict[PageKey, HeldPage] = {}
        for address in addresses:
            page = folio.slice(address.position, address.length)
            pages[PageKey.of(address, WHOLE)] = WrittenPage(page)
        self._cache.put(pages, folio.size)

    def forget(self, folio: str) -> None:
        """Forget the pages of a folio that was deleted."""
        self._cache.discard(folio)
        self._heads.discard_where(lambda key: key[0] == folio)
        self._footers.discard(folio)

    def close(self) -> None:
        """Stop reading ahead; scans under way end with Unavailable."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._decoders.shutdown(wait=True)

    def _begin(
        self,
        group: Sequence[PageAddress],
        wanted: Wanted,
        run: "Callable[[Future[Loaded], Callable[[], Loaded]], None]",
    ) -> "Step":
        """Begin to read what is not there of a group of pages, and not being read already."""
        step = Step(group, wanted)
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

    def _load(self, addresses: Sequence[PageAddress], wanted: Wanted) -> Loaded:
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

    def _load_whole(self, addresses: Sequence[PageAddress], wanted: Wanted) -> Loaded:
        folio = addresses[0].folio
        ranges = [(each.position, each.position + each.length) for each in addresses]
        try:
            pages = self._objects.read(folio, ranges)
        except StorageCorrupt as error:
            if len(addresses) == 1 or error.facts.get("missing"):
                return dict.fromkeys(map(wanted.key, addresses), error)
            # The object was cut off: the pages before that are whole.
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

    def _whole_page(self, address: PageAddress, page: pa.Buffer, wanted: Wanted) -> HeldPage:
        if is_parquet(address.folio):
            return ParquetPage.whole(self._row_group(address, wanted), page, wanted.names)
        return WholePage(page, wanted.topic_uuid, wanted.schema, wanted.parts)

    def _load_columns(self, address: PageAddress, wanted: Wanted) -> Loaded:
        key = wanted.key(address)
        if is_parquet(address.folio):
            return {key: self._load_parquet_columns(address, wanted)}
        try:
            head = self._head(address, wanted)
            columns = sorted(set(wanted.columns or ()))
            # A column of nulls has no bytes.
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
        self, address: PageAddress, wanted: Wanted
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

    def _read_step(self, step: "Step") -> Iterator[pa.RecordBatch]:
        """Yield the rows of each page of a step; blocks until it is read."""
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

    def _begin_read(self, address: PageAddress, step: "Step") -> "Callable[[], pa.RecordBatch]":
        """Begin to decode a page, where its bytes are there and that takes long.

        Returns:
            What waits for its rows and returns them, or raises why there are none.
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

    def _read_held(self, address: PageAddress, step: "Step") -> pa.RecordBatch:
        """Wait for the bytes of a page, and decode them."""
        wanted = step.wanted
        key = wanted.key(address)
        held = step.held.get(key) or step.loading[key].result()[key]
        try:
            rows = _rows_of(held, wanted)
        except StorageCorrupt:
            if isinstance(held, StorageCorrupt):
                raise
            # These columns were not verified until now; what is stored may be right.
            held = self._read_again(address, wanted)
            rows = _rows_of(held, wanted)
        assert not isinstance(held, StorageCorrupt), "it has no rows"
        if held.is_compressed:
            self._cache.keep_rows(wanted.rows_key(address), rows)
        return rows

    def _read_again(self, address: PageAddress, wanted: Wanted) -> "HeldPage | StorageCorrupt":
        """Read a page that was damaged in memory, or before its bytes came here."""
        key = wanted.key(address)
        self._cache.discard_page(address, key.parts)
        self._heads.discard((address.folio, address.position))
        self._footers.discard(address.folio)
        return self._load([address], wanted)[key]

    def _row_group(self, address: PageAddress, wanted: Wanted) -> RowGroup:
        """Return which row group of a Parquet file a page is, by its footer."""
        footer = self._footers.get(address.folio)
        if footer is None:
            footer = read_footer(
                lambda start, end: self._objects.read(address.folio, [(start, end)])[0],
                self._objects.size(address.folio),
            )
            self._footers.put(address.folio, footer, footer.weight)
        return footer.row_group(address.position, address.length, wanted.topic_uuid)

    def _head(self, address: PageAddress, wanted: Wanted) -> PageHead:
        """Return a page's header and metadata, from memory or read."""
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


def _rows_of(held: "HeldPage | StorageCorrupt", wanted: Wanted) -> pa.RecordBatch:
    if isinstance(held, StorageCorrupt):
        raise held
    return held.read(wanted.topic_uuid, wanted.schema, wanted.columns)


def _run_now(future: "Future[Loaded]", load: Callable[[], Loaded]) -> None:
    try:
        future.set_result(load())
    except BaseException as error:  # noqa: BLE001 - it is raised where the pages are waited for
        future.set_exception(error)
