"""A flush: writes pages to storage, then assigns their offsets in one metadata transaction.

Pages are durable when `FolioStore.write` returns. A crash between the two steps leaves unreferenced
bytes, and no acknowledgement. The pages of a small flush are stored in that transaction itself,
until they are drained.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from wings_core import tracing
from wings_core.ingest.pack import Packer
from wings_core.ingest.pending import Pending
from wings_core.metadata.interfaces import OffsetRegistry
from wings_core.model import (
    CommitBatch,
    CommitResult,
    InlineFolio,
    PageAddress,
    SeriesResults,
    StoredPage,
)
from wings_core.storage.interfaces import EncodedPage, FolioStore


class InlineWriter(Protocol):
    """Chooses the flushes whose pages are stored in metadata; see `maintain.drain.Drain`."""

    def has_room(self, size: int) -> bool:
        """Return whether a flush of `size` bytes may be stored inline."""
        ...

    def begin(self, pages: Sequence[EncodedPage]) -> tuple[InlineFolio, list[PageAddress]] | None:
        """Return an inline folio of a flush's pages, and their addresses; None to use storage.

        Raises:
            ResourceExhausted: Neither metadata nor storage accepts them.
        """
        ...

    def note(self, inline: InlineFolio) -> None:
        """Record that a folio was committed."""
        ...

    def forget(self, inline: InlineFolio) -> None:
        """Record that the commit of a folio failed."""
        ...


class FlushWriter:
    """A writer of flushes, used by one thread at a time.

    Args:
        store: Store of the pages.
        registry: Assigns offsets.
        inline: Chooses the flushes that metadata stores; None for none.
    """

    def __init__(
        self, store: FolioStore, registry: OffsetRegistry, inline: InlineWriter | None
    ) -> None:
        self._store = store
        self._registry = registry
        self._inline = inline
        self._packer = Packer()

    def write(self, live: Sequence[Pending]) -> list[tuple[CommitResult, ...]]:
        """Write the pages and commit them; blocks until both are durable.

        Returns:
            The results of each batch; see `Pending.outcomes`.

        Raises:
            WingsError: Nothing was committed, or the outcome is unknown.
        """
        if not live:
            return []
        first = live[0].batch
        stored: Iterable[tuple[StoredPage, ...]]
        if len(live) == 1 and (page := self._packer.only_page(first)) is not None:
            # One page of one partition, the usual case.
            inline, (address,) = self._place((page,))
            ((partition, rows),) = first.runs
            version = first.topic.schema_version
            stored = [(StoredPage(partition, rows, address, None, None, version),)]
        else:
            packed = self._packer.pack([pending.batch for pending in live])
            inline, addresses = self._place(packed.pages)
            stored = packed.stored(addresses)
        batches = [
            pending.batch.to_commit(pending.stream.number, pages)
            for pending, pages in zip(live, stored, strict=True)
        ]
        results = self._commit(batches, inline)
        return [each.each if isinstance(each, SeriesResults) else (each,) for each in results]

    def _place(self, pages: Sequence[EncodedPage]) -> tuple[InlineFolio | None, list[PageAddress]]:
        """Place pages inline or in storage; returns the inline folio, if any, and the addresses."""
        if not pages:
            return None, []
        begun = None if self._inline is None else self._inline.begin(pages)
        if begun is not None:
            return begun
        with tracing.span("storage.write", {"wings.pages": len(pages)}):
            return None, self._store.write(pages)

    def _commit(self, batches: list[CommitBatch], inline: InlineFolio | None) -> list[CommitResult]:
        commit = self._commit_in_span if tracing.is_on() else self._registry.commit
        if inline is None or self._inline is None:
            return commit(batches)
        try:
            results = commit(batches, inline=inline)
        except BaseException:
            self._inline.forget(inline)
            raise
        self._inline.note(inline)
        return results

    def _commit_in_span(
        self, batches: list[CommitBatch], inline: InlineFolio | None = None
    ) -> list[CommitResult]:
        with tracing.span("metadata.commit", {"messaging.batch.message_count": len(batches)}):
            return self._registry.commit(batches, inline=inline)
