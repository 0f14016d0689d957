"""Folios that metadata keeps, as another process reads them: many are asked for at once."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from wings_core.errors import StorageCorrupt
from wings_core.model import INLINE_FOLIOS_MAX, InlineFolio, PageAddress
from wings_core.storage import inline_folios
from wings_core.storage.codecs import PUSHES
from wings_core.storage.inline_folios import InlineFolios

SCHEMA = pa.schema({"n": pa.int64()})
TOPIC = "6f2a0d55-3cf1-4b0e-9a34-8f3a86a4b1f0"


class Kept:
    """What metadata keeps, and what it was asked for."""

    def __init__(self, folios: int) -> None:
        self.folios: dict[str, bytes] = {}
        self.addresses: list[PageAddress] = []
        self.asked: list[int] = []
        self.answers = INLINE_FOLIOS_MAX
        """How many of those that it is asked for it knows of."""
        writer = InlineFolios(self.read)
        encoder = PUSHES.encoder(TOPIC, SCHEMA)
        for number in range(folios):
            page = encoder.encode(pa.record_batch({"n": [number]}, schema=SCHEMA))
            folio, (address,) = writer.begin([page])
            assert isinstance(folio, InlineFolio)
            self.folios[folio.name] = folio.data
            self.addresses.append(address)

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        assert 0 < len(names) <= INLINE_FOLIOS_MAX
        assert len(set(names)) == len(names)
        self.asked.append(len(names))
        known = names[: self.answers]
        return {name: self.folios[name] for name in known if name in self.folios}

    def rows(self, store: InlineFolios) -> list[int]:
        read = store.read_all(self.addresses, TOPIC, SCHEMA)
        return [row["n"] for batch in read for row in batch.to_pylist()]


def test_those_that_are_not_in_memory_are_asked_for_at_once() -> None:
    kept = Kept(INLINE_FOLIOS_MAX + 3)
    store = InlineFolios(kept.read)
    store.read(kept.addresses[1], TOPIC, SCHEMA)
    assert kept.rows(store) == list(range(INLINE_FOLIOS_MAX + 3))
    assert kept.asked == [1, INLINE_FOLIOS_MAX, 2]
    assert kept.rows(store) == list(range(INLINE_FOLIOS_MAX + 3))
    assert len(kept.asked) == 3  # They are kept.


def test_no_more_are_asked_for_than_pages_of_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(5)
    monkeypatch.setattr(inline_folios, "AHEAD_BYTES", 2 * kept.addresses[0].length)
    assert kept.rows(InlineFolios(kept.read)) == list(range(5))
    assert kept.asked == [2, 2, 1]


def test_a_service_that_knows_of_one_at_a_time_is_asked_for_each() -> None:
    kept = Kept(3)
    kept.answers = 1
    assert kept.rows(InlineFolios(kept.read)) == [0, 1, 2]
    assert kept.asked == [3, 2, 1]


def test_what_does_not_fit_into_memory_is_asked_for_again() -> None:
    kept = Kept(4)
    assert kept.rows(InlineFolios(kept.read, kept_bytes_max=1)) == [0, 1, 2, 3]


def test_one_that_was_drained_meanwhile_is_missing_and_those_before_it_are_read() -> None:
    kept = Kept(3)
    gone = kept.addresses[1].folio
    del kept.folios[gone]
    read = InlineFolios(kept.read).read_all(kept.addresses, TOPIC, SCHEMA)
    assert next(read).column(0).to_pylist() == [0]
    with pytest.raises(StorageCorrupt, match="no longer in metadata") as told:
        next(read)
    assert told.value.facts == {"folio": gone, "missing": True}


def test_metadata_is_asked_for_nothing_where_another_thread_has_read_the_folio_meanwhile() -> None:
    kept = Kept(1)
    store = InlineFolios(kept.read)

    class ReadMeanwhile(list[PageAddress]):
        """Addresses of which the folio is read once it was found not to be in memory."""

        iterators = 0

        def __iter__(self) -> Iterator[PageAddress]:
            self.iterators += 1
            if self.iterators == 2:
                store.read(self[0], TOPIC, SCHEMA)
            return super().__iter__()

    addresses = ReadMeanwhile(kept.addresses)
    assert len(list(store.read_all(addresses, TOPIC, SCHEMA))) == 1
    assert addresses.iterators == 2
    assert kept.asked == [1]
