"""The messages of a delivery that go one by one to a client that may not read."""

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from wings_core.partitions import UNPARTITIONED
from wings_core.share.delivery.delivery import Delivery
from wings_core.share.model import LeasedRange
from wings_server.flight.share_stream import ShareStream
from wings_server.flight.unread import UNREAD_BYTES_MAX

ROWS = 100


@pytest.mark.parametrize(("large_bytes", "written"), [(10 * UNREAD_BYTES_MAX, 0), (10, 31)])
def test_no_more_is_written_than_a_client_may_leave_unread(large_bytes: int, written: int) -> None:
    texts = ["a" * large_bytes] * 2 + ["a"] * (ROWS - 2)
    batch = pa.record_batch({"text": texts, "__offset": pa.array(range(ROWS), pa.int64())})
    writes: list[pa.RecordBatch] = []

    def write(rows: pa.RecordBatch, _: object) -> None:
        writes.append(rows)

    def nothing(*_: object) -> tuple[()]:
        return ()

    command = SimpleNamespace(member="m", max_messages=1)
    topic = SimpleNamespace(name="t")
    anything: Any = SimpleNamespace
    stream = ShareStream(
        anything(shares=None, pushed_in=nothing),
        anything(group=anything(topic=topic), command=command, schema=batch.schema),
        anything(write_with_metadata=write),
        anything(delivered=nothing),
        anything(usage=None),
        anything(),
    )
    leased = LeasedRange(UNPARTITIONED, 0, ROWS - 1, "lease", 1, 30_000)
    cast("Any", stream)._send_pieces(Delivery(leased, batch))
    assert len(writes) == written
