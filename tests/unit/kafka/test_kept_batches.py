"""Batches that are kept for consumers at the tail."""

import numpy as np
import pyarrow as pa

from wings_core.partitions import Partition
from wings_server.kafka.kept_batches import KeptBatches
from wings_server.kafka.record_types import Records
from wings_server.kafka.records import decode, encode
from wings_server.kafka.small_records import no_headers

ZERO = Partition("0")


def batch(value: bytes) -> bytes:
    values = pa.array([value] * 3, pa.binary())
    return bytes(encode(0, Records(values, values, no_headers(3), np.arange(3))))


def test_a_batch_is_kept_at_its_place_with_its_records() -> None:
    kept = KeptBatches(1 << 20)
    kept.keep("topic", ZERO, 70_000, batch(b"first"), 3)
    found = kept.at("topic", ZERO, 70_000)
    assert found is not None
    decoded = decode(found.data, 1 << 20)
    assert (found.rows, decoded.head.base_offset) == (3, 70_000)
    assert decoded.records.value.to_pylist() == [b"first"] * 3
    assert kept.at("topic", ZERO, 70_001) is None
    assert kept.at("topic", Partition("1"), 70_000) is None
    assert kept.at("other", ZERO, 70_000) is None


def test_the_first_batch_of_a_place_stays() -> None:
    kept = KeptBatches(1 << 20)
    for value in (b"first", b"later"):
        kept.keep("topic", ZERO, 0, batch(value), 3)
    found = kept.at("topic", ZERO, 0)
    assert found is not None
    assert b"first" in found.data


def test_the_oldest_batches_are_dropped_beyond_the_bound() -> None:
    data = batch(b"v" * 10_000)
    kept = KeptBatches(5 * len(data))
    for offset in range(0, 30, 3):
        kept.keep("topic", ZERO, offset, data, 3)
    found = [kept.at("topic", ZERO, offset) is not None for offset in range(0, 30, 3)]
    assert found == [False] * 6 + [True] * 4
