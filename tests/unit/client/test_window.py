import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from wings_client._cancellation import Cancellation
from wings_client._model import Committed, CommittedRange
from wings_client._window import Entry, JoinedRanges, Send, Window
from wings_core.errors import (
    InvalidArgument,
    OffsetMismatch,
    ResourceExhausted,
    Unavailable,
)
from wings_core.times import Deadline

BATCH = pa.record_batch({"n": pa.array([1, 2])})
LARGE = pa.record_batch({"n": pa.array(range(10_000))})
NOW = Deadline.after(0)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def in_one_minute() -> float:
    return time.monotonic() + 60


def committed(start: int, end: int, partition: str | int | None = None) -> CommittedRange:
    return CommittedRange(partition, start, end, NOON)


def window(batches: int = 4, size: int = 1 << 20) -> Window:
    return Window(BATCH.schema, 10, batches, size, "grpc://host:1")


def answer(found: Window, start: int, end: int) -> None:
    """Write the next batch and answer it."""
    assert found.next_to_write(in_one_minute()) is not None
    found.answered([committed(start, end)])


def test_a_send_is_resolved_by_its_last_answer_with_joined_ranges() -> None:
    found = window()
    send = found.begin()
    found.put(send, BATCH, None, NOW)
    found.put(send, BATCH, None, NOW)
    future = found.complete(send)
    assert found.begin_stream() == 10
    answer(found, 0, 1)
    assert not future.done()
    answer(found, 2, 3)
    result = future.result(0)
    assert result.committed == (committed(0, 3),)
    assert (result.rows, result.batches) == (4, 2)
    assert (result.sequence, result.next_sequence) == (10, 12)
    assert (found.rows, found.answers) == (4, 2)


def test_a_send_of_nothing_is_resolved_at_once() -> None:
    found = window()
    send = found.begin()
    result = found.complete(send).result(0)
    assert result.committed == ()
    assert result.next_sequence == 10


def test_a_send_that_is_answered_before_it_is_complete_is_resolved_then() -> None:
    found = window()
    send = found.begin()
    found.put(send, BATCH, None, NOW)
    found.begin_stream()
    answer(found, 0, 1)
    resolved: list[Future[Committed]] = []
    future = found.complete(send, resolved.append)
    assert future.result(0).committed == (committed(0, 1),)
    assert resolved == [future]


def test_a_send_that_failed_before_it_is_complete_fails_then() -> None:
    found = window()
    send = found.begin()
    found.put(send, BATCH, None, NOW)
    found.put(send, BATCH, None, NOW)
    found.begin_stream()
    answer(found, 0, 1)
    found.fail(OffsetMismatch("no", next_offset=7))
    error = found.complete(send).exception(0)
    assert isinstance(error, OffsetMismatch)
    assert error.rows_committed == 2


@pytest.mark.parametrize("full", [{"batches": 1}, {"size": BATCH.nbytes}], ids=str)
def test_a_full_window_makes_a_sender_wait_for_an_answer(full: dict[str, int]) -> None:
    found = window(**full)
    send = found.begin()
    found.put(send, BATCH, None, NOW)
    with pytest.raises(ResourceExhausted) as refused:
        found.put(send, BATCH, None, NOW)
    assert refused.value.batches_sent == 1
    second = in_thread(lambda: found.put(send, BATCH, None, Deadline.never()))
    found.begin_stream()
    answer(found, 0, 1)
    second()
    assert found.next_sequence == 12


def in_thread(call: Callable[[], object]) -> Callable[[], None]:
    """Run a call in a thread; return what waits for its end."""
    thread = threading.Thread(target=call)
    thread.start()

    def end() -> None:
        thread.join(60)
        assert not thread.is_alive()

    return end


class Writer:
    """The writer's thread at an open stream: takes batches until the stream ends."""

    def __init__(self, found: Window, seconds: float = 60) -> None:
        self.taken: list[int] = []
        self._found = found
        self._expiry = time.monotonic() + seconds
        found.begin_stream()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (entry := self._found.next_to_write(self._expiry)) is not None:
            self.taken.append(entry.sequence)

    def put_until_it_is_the_senders(self, send: Send, batch: pa.RecordBatch = BATCH) -> bool:
        """Put in batches, and answer each, until the sender has to write one; False if never."""
        deadline = time.monotonic() + 60
        while not self._found.put(send, batch, None, NOW):
            if time.monotonic() > deadline or not self._thread.is_alive():
                return False
            while self._found.unanswered:
                self._found.answered([committed(0, 1)])
        return True

    def waits(self, seconds: float) -> bool:
        """Whether it has not ended after so many seconds."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def end(self) -> None:
        """Wait for its end."""
        assert not self.waits(60)


def test_a_sender_writes_its_batch_where_the_writer_has_nothing_to_do() -> None:
    found = window()
    send = found.begin()
    writer = Writer(found)
    assert writer.put_until_it_is_the_senders(send)
    sequence = found.next_sequence - 1
    assert found.unanswered, "the batch is written to the present stream"
    found.end_stream()
    assert writer.waits(0.1), "the stream must not end under the sender"
    found.written(True)
    writer.end()
    assert sequence not in writer.taken
    assert found.begin_stream() == sequence


def test_a_stream_that_is_old_ends_once_the_sender_has_written() -> None:
    for seconds in (0.5, 2, 8, 32):  # A machine that stalls lets the stream grow old too soon.
        found = window()
        send = found.begin()
        writer = Writer(found, seconds)
        if writer.put_until_it_is_the_senders(send):
            break
        writer.end()
    assert writer.waits(seconds + 0.2)
    found.written(True)
    writer.end()


def test_a_sender_that_has_no_batch_to_write_ends_no_stream() -> None:
    found = window()
    found.begin_stream()
    found.put(found.begin(), BATCH, None, NOW)
    found.written(False)
    assert found.next_to_write(in_one_minute()) is not None


def test_a_batch_that_a_sender_could_not_write_is_written_to_the_next_stream() -> None:
    found = window()
    send = found.begin()
    writer = Writer(found)
    assert writer.put_until_it_is_the_senders(send)
    found.written(False)
    writer.end()
    sequence = found.begin_stream()
    assert sequence == found.next_sequence - 1
    entry = found.next_to_write(in_one_minute())
    assert entry is not None
    assert entry.sequence == sequence


def test_a_sender_writes_nothing_before_what_is_older() -> None:
    found = window()
    send = found.begin()
    found.begin_stream()
    assert not found.put(send, BATCH, None, NOW), "no call waits at the stream"
    writer = Writer(found)
    assert not found.put(send, LARGE, None, NOW), "the server may have to read first"
    assert not found.put(send, BATCH, None, NOW), "too much is unanswered"
    found.close()
    writer.end()
    assert writer.taken == [10, 11, 12]


def test_a_sender_writes_no_more_of_a_wide_schema_than_the_server_takes_without_a_wait() -> None:
    names = [f"c{number}" for number in range(200)]
    wide = pa.record_batch([pa.array([True])] * len(names), names=names)
    found = Window(wide.schema, 10, 64, 1 << 20, "grpc://host:1")
    send = found.begin()
    writer = Writer(found)
    assert writer.put_until_it_is_the_senders(send, wide)
    found.written(True)
    written = 1
    while found.put(send, wide, None, NOW):
        found.written(True)
        written += 1
    assert written * pa.ipc.get_record_batch_size(wide) <= 32 * 1024
    found.close()
    writer.end()


def test_columns_that_share_their_memory_count_each() -> None:
    values = pa.array(range(1000))
    item = pa.StructArray.from_arrays([values] * 20, [f"c{number}" for number in range(20)])
    for batch in (
        pa.record_batch([values] * 20, names=[f"c{number}" for number in range(20)]),
        pa.record_batch([item], names=["item"]),
    ):
        assert batch.get_total_buffer_size() < batch.nbytes // 10
        found = Window(batch.schema, 10, 64, 1 << 30, "grpc://host:1")
        send = found.begin()
        writer = Writer(found)
        for _ in range(20):
            assert not found.put(send, batch, None, NOW), "the server may have to read first"
            while found.unanswered:
                found.answered([committed(0, 1)])
        found.close()
        writer.end()


class InterruptedDeque(deque[Entry]):
    """Raises what Ctrl-C does, once an entry is in it."""

    def append(self, entry: Entry, /) -> None:
        super().append(entry)
        raise KeyboardInterrupt


def test_a_batch_that_was_put_in_by_an_interrupted_call_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = window()
    send = found.begin()
    writer = Writer(found)
    assert writer.put_until_it_is_the_senders(send), "the writer waits"
    found.written(True)
    found.answered([committed(0, 1)])
    monkeypatch.setattr(found, "_entries", InterruptedDeque())
    sequence = found.next_sequence
    with pytest.raises(KeyboardInterrupt):
        found.put(send, BATCH, None, NOW)
    deadline = time.monotonic() + 60
    while sequence not in writer.taken:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    found.close()
    writer.end()


def test_a_part_of_a_batch_leaves_the_rest_of_a_small_window_to_others() -> None:
    whole = pa.record_batch({"n": pa.array(range(1000))})
    found = window(size=whole.nbytes)
    send = found.begin()
    for start in range(4):
        found.put(send, whole.slice(start, 1), None, NOW)
    assert send.unanswered == 4


def test_one_batch_may_be_larger_than_the_window() -> None:
    found = window(size=1)
    found.put(found.begin(), BATCH, None, NOW)


def test_a_new_stream_begins_with_the_oldest_batch_without_an_answer() -> None:
    found = window()
    send = found.begin()
    for _ in range(3):
        found.put(send, BATCH, None, NOW)
    found.begin_stream()
    answer(found, 0, 1)
    assert found.next_to_write(in_one_minute()) is not None
    assert found.unanswered
    assert found.begin_stream() == 11
    written = [found.next_to_write(in_one_minute()) for _ in range(2)]
    assert [entry and entry.sequence for entry in written] == [11, 12]


def test_a_writer_stops_where_its_stream_ended_is_old_or_nothing_more_comes() -> None:
    found = window()
    found.put(found.begin(), BATCH, None, NOW)
    found.begin_stream()
    assert found.next_to_write(time.monotonic()) is None
    found.end_stream()
    assert found.next_to_write(in_one_minute()) is None
    found.begin_stream()
    assert found.next_to_write(in_one_minute()) is not None
    found.close()
    assert found.next_to_write(in_one_minute()) is None


def test_a_failure_fails_all_that_is_there_and_all_that_comes() -> None:
    found = window()
    first, second = found.begin(), found.begin()
    for send in (first, first, second):
        found.put(send, BATCH, None, NOW)
    futures = [found.complete(send) for send in (first, second)]
    found.begin_stream()
    answer(found, 0, 1)
    found.fail(OffsetMismatch("no", next_offset=7))
    for future, rows in zip(futures, (2, 0), strict=True):
        error = future.exception(0)
        assert isinstance(error, OffsetMismatch)
        assert error.next_offset == 7
        assert error.rows_committed == rows
    with pytest.raises(OffsetMismatch):
        found.put(found.begin(), BATCH, None, NOW)
    with pytest.raises(OffsetMismatch):
        found.wait_empty(0)
    assert not found.wait_for_work()
    found.answered([committed(2, 3)])  # One that was under way; its caller has gone.


def test_a_failure_frees_a_sender_that_waits_for_room() -> None:
    found = window(batches=1)
    send = found.begin()
    found.put(send, BATCH, None, NOW)

    def put() -> None:
        with pytest.raises(OffsetMismatch):
            found.put(send, BATCH, None, Deadline.never())

    end = in_thread(put)
    found.fail(OffsetMismatch("no"))
    end()


def test_a_closed_window_takes_nothing_and_keeps_what_it_has() -> None:
    found = window()
    found.put(found.begin(), BATCH, None, NOW)
    assert found.close()
    assert not found.close()
    with pytest.raises(InvalidArgument, match="closed"):
        found.put(found.begin(), BATCH, None, NOW)
    assert found.wait_for_work()
    with pytest.raises(Unavailable):
        found.wait_empty(0)


def test_ranges_are_joined_by_partition_where_nothing_lies_between() -> None:
    ranges = JoinedRanges()
    ranges.add([committed(0, 1, "a"), committed(5, 6, "b")])
    ranges.add([committed(2, 3, "a"), committed(9, 9, "b")])
    ranges.add([committed(0, 0, 1), committed(0, 0, "a")])
    assert ranges.joined() == (
        committed(0, 3, "a"),
        committed(5, 6, "b"),
        committed(9, 9, "b"),
        committed(0, 0, 1),
        committed(0, 0, "a"),
    )


def test_the_partitions_true_and_1_are_two() -> None:
    ranges = JoinedRanges()
    ranges.add([committed(0, 0, True)])
    ranges.add([committed(1, 1, 1)])
    assert len(ranges.joined()) == 2


def test_a_cancelled_send_puts_nothing_more_in_though_there_is_room() -> None:
    found = window()
    send = found.begin()
    cancellation = Cancellation()

    def put() -> None:
        found.put(send, BATCH, None, NOW)

    cancellation.run(put)
    cancellation.cancel()
    with pytest.raises(Unavailable):
        cancellation.run(put)
    assert found.next_sequence == 11


def test_what_was_written_and_never_answered_is_in_doubt_where_nobody_refused_it() -> None:
    for error, in_doubt in (
        (Unavailable("gone"), 4),
        (ResourceExhausted("too many streams"), 4),
        (OffsetMismatch("not there", expected=1, actual=2), 0),
    ):
        found = window()
        send = found.begin()
        for _ in range(4):
            found.put(send, BATCH, None, NOW)
        found.begin_stream()
        answer(found, 0, 1)
        for _ in range(2):
            assert found.next_to_write(in_one_minute()) is not None
        found.end_stream()
        found.begin_stream()  # On which nothing was written yet.
        found.fail(error)
        assert (found.rows, found.rows_in_doubt) == (2, in_doubt)
