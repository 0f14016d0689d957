"""The messages of a delivery that go one by one to a client that may not read."""

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from wings_core.contracts.share import AcknowledgementEntry
from wings_core.contracts.share_stream import AcknowledgeMessage
from wings_core.model import LeasedRange, ShareConfig
from wings_core.partitions import UNPARTITIONED
from wings_core.share.delivery.delivery import DeliveredBatch
from wings_server.flight.share_stream import ServedStream
from wings_server.flight.unread import UNREAD_BYTES_MAX
from wings_server.share_actions import Settled

ROWS = 100


@pytest.mark.parametrize(("large_bytes", "written"), [(10 * UNREAD_BYTES_MAX, 0), (10, 31)])
def test_no_more_is_written_than_a_client_may_leave_unread(large_bytes: int, written: int) -> None:
    texts = ["a" * large_bytes] * 2 + ["a"] * (ROWS - 2)
    batch = pa.record_batch({"text": texts, "__offset": pa.array(range(ROWS), pa.int64())})
    stream, writes = stream_of(batch.schema)
    leased = LeasedRange(UNPARTITIONED, 0, ROWS - 1, "lease", 1, 30_000)
    cast("Any", stream)._send(DeliveredBatch(leased, batch))
    assert len(writes) == written


@pytest.mark.parametrize(("messages", "written"), [(1, 2), (1_000, 0)])
def test_long_answers_are_not_written_where_that_might_wait(messages: int, written: int) -> None:
    stream, writes = stream_of(pa.schema([]))
    entry = AcknowledgementEntry(first=0, last=0, lease="lease", type="accept")
    request = AcknowledgeMessage(request=1, acks=(entry,) * messages)
    stream.answer([request] * 2, [Settled([None] * messages, [])] * 2)
    assert len(writes) == written


def stream_of(schema: pa.Schema) -> tuple[ServedStream, list[pa.RecordBatch]]:
    """Return a stream that delivers one message at a time, and what it writes."""
    writes: list[pa.RecordBatch] = []

    def write(rows: pa.RecordBatch, _: object) -> None:
        writes.append(rows)

    def nothing(*_: object) -> tuple[()]:
        return ()

    anything: Any = SimpleNamespace
    command = anything(member="m", max_messages=1, credit=ROWS)
    group = anything(topic=anything(name="t"), config=ShareConfig())
    stream = ServedStream(
        anything(shares=anything(coordinator=None), pushed_in=nothing),
        anything(group=group, command=command, schema=schema),
        anything(write_with_metadata=write),
        anything(delivered=nothing),
        anything(usage=None),
        anything(),
    )
    return stream, writes
