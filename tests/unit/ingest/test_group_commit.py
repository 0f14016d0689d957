"""Group commit over a real store and registry."""

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from fix_storage import FaultyFiles

from wings_core.errors import Internal, OffsetMismatch, Unavailable
from wings_core.ingest import group_commit
from wings_core.ingest.group_commit import FlushReport, GroupCommit
from wings_core.ingest.pending import Pending, PushStream
from wings_core.ingest.prepare import PreparedBatch, Preparer, PushOptions
from wings_core.limits import Limits
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import Accepted, CommitResult, InlineFolio, PageAddress, Rejected, Topic
from wings_core.names import TopicName
from wings_core.partitions import UNPARTITIONED
from wings_core.storage.interfaces import EncodedPage
from wings_core.storage.segments import SegmentStore

SCHEMA = pa.schema([("n", pa.int64())])


class GatedStore(SegmentStore):
    """A real store whose writes can be held up, so that others come during a flush."""

    def __init__(self, directory: Path, files: FaultyFiles) -> None:
        super().__init__(directory, segment_bytes_max=1 << 20, files=files)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.threads: list[str] = []
        """That wrote."""

    def write(self, pages: Sequence[EncodedPage]) -> list[PageAddress]:
        self.threads.append(threading.current_thread().name)
        self.entered.release()
        assert self.gate.wait(60)
        return super().write(pages)


class Room:
    """Says whether metadata has room for pages, as it is told; all of them go to storage."""

    def __init__(self) -> None:
        self.is_there = False
        self.asked_by_flusher = threading.Semaphore(0)

    def has_room(self, size: int) -> bool:
        del size
        if threading.current_thread().name == "wings-flusher":
            self.asked_by_flusher.release()
        return self.is_there

    def begin(self, pages: Sequence[EncodedPage]) -> tuple[InlineFolio, list[PageAddress]] | None:
        del pages

    def note(self, inline: InlineFolio) -> None: ...

    def forget(self, inline: InlineFolio) -> None: ...


class Rig:
    """A group commit with all its real parts."""

    def __init__(
        self,
        path: Path,
        limits: Limits | None = None,
        *,
        lingers: bool = False,
        inline: Room | None = None,
    ) -> None:
        self.metadata = SqliteMetadata(path / "metadata.sqlite")
        self.files = FaultyFiles()
        self.store = GatedStore(path / "segments", self.files)
        self.reports: list[FlushReport] = []
        self.limits = limits or Limits()
        self.group = GroupCommit(
            self.store,
            self.metadata.registry,
            self.limits,
            self.reports.append,
            lingers=lingers,
            inline=inline,
        )
        self.topic: Topic = self.metadata.admin.create_topic(TopicName.parse("t"), SCHEMA)

    def batch(self, *values: int, expected: int | None = None) -> PreparedBatch:
        rows = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=SCHEMA)
        options = PushOptions(expected_offset=expected)
        return Preparer(self.topic, self.limits).prepare(rows, options)

    def next_offset(self) -> int:
        return self.metadata.registry.partition_state(self.topic.uuid, UNPARTITIONED).next_offset

    def close(self) -> None:
        self.store.gate.set()
        self.group.close()
        self.store.close()
        self.metadata.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def in_background(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def outcome(pending: Pending) -> CommitResult:
    """Return a batch's outcome, of which a thread waits that may hang."""
    found: list[CommitResult] = []
    thread = threading.Thread(target=lambda: found.append(pending.outcome()), daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert found, "the outcome is not known"
    return found[0]


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_whoever_comes_during_a_flush_shares_the_next(rig: Rig) -> None:
    rig.store.gate.clear()
    first = rig.group.submit(PushStream(), rig.batch(0), awaited=True)
    leader = in_background(first.outcome)
    assert rig.store.entered.acquire(timeout=60)
    later = [rig.group.submit(PushStream(), rig.batch(n), awaited=False) for n in range(20)]
    rig.store.gate.set()
    results = [pending.outcome() for pending in later]
    leader.join(timeout=60)
    assert all(isinstance(result, Accepted) for result in results)
    rig.group.close()  # The report comes after the outcomes.
    assert [report.batches for report in rig.reports] == [1, 20]
    assert rig.next_offset() == 21


def test_what_nobody_waits_for_is_flushed_by_the_flusher(rig: Rig) -> None:
    pending = rig.group.submit(PushStream(), rig.batch(1), awaited=False)
    assert rig.store.entered.acquire(timeout=60)  # Without a call of outcome().
    assert isinstance(pending.outcome(), Accepted)


def answering(rig: Rig, stream: PushStream, threads: list[str]) -> Callable[[], object]:
    """Return what answers a batch, and then the next of its stream, on one thread."""
    first = rig.group.submit(stream, rig.batch(0), awaited=True)

    def answer() -> None:
        first.outcome()
        threads.append(threading.current_thread().name)
        later = rig.group.submit(stream, rig.batch(2), awaited=False)
        later.outcome()

    return answer


def test_what_comes_during_a_flush_is_left_to_the_thread_that_answers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "LATE_SECONDS", 3600.0)
    rig.store.gate.clear()
    stream = PushStream(returns=True)
    threads: list[str] = []
    leader = in_background(answering(rig, stream, threads))
    assert rig.store.entered.acquire(timeout=60)
    rig.group.submit(stream, rig.batch(1), awaited=False)
    rig.store.gate.set()
    leader.join(timeout=60)
    assert rig.store.threads == threads * 2, "the flusher was not told"
    assert [report.batches for report in rig.reports] == [1, 2]
    assert rig.next_offset() == 3


def test_what_a_late_thread_leaves_is_flushed_by_the_flusher(rig: Rig) -> None:
    rig.store.gate.clear()
    stream = PushStream(returns=True)
    first = rig.group.submit(stream, rig.batch(0), awaited=True)
    leader = in_background(first.outcome)
    assert rig.store.entered.acquire(timeout=60)
    rig.group.submit(stream, rig.batch(1), awaited=False)
    rig.store.gate.set()
    leader.join(timeout=60)
    # It does not return: as one whose client reads no answers.
    assert rig.store.entered.acquire(timeout=60)
    last = rig.group.submit(stream, rig.batch(2), awaited=False)
    assert rig.store.entered.acquire(timeout=60)
    assert isinstance(outcome(last), Accepted)
    assert rig.next_offset() == 3


def test_what_comes_after_a_flush_is_flushed_though_the_thread_that_answers_is_held_up(
    rig: Rig,
) -> None:
    """It writes an answer that the client does not read, and never asks for the next outcome."""
    stream = PushStream(returns=True)
    first = rig.group.submit(stream, rig.batch(0), awaited=True)
    assert isinstance(first.outcome(), Accepted)
    assert rig.store.entered.acquire(timeout=60)
    later = rig.group.submit(stream, rig.batch(1), awaited=False)
    assert rig.store.entered.acquire(timeout=60)
    assert isinstance(later.outcome(), Accepted)


def test_a_refused_batch_refuses_the_later_ones_of_its_stream_in_later_flushes(rig: Rig) -> None:
    stream = PushStream()
    refused = rig.group.submit(stream, rig.batch(1, expected=7), awaited=True).outcome()
    assert isinstance(refused, Rejected)
    assert isinstance(refused.error, OffsetMismatch)
    later = rig.group.submit(stream, rig.batch(2), awaited=True).outcome()
    assert isinstance(later, Rejected)
    assert later.error is refused.error
    other = rig.group.submit(PushStream(), rig.batch(3), awaited=True).outcome()
    assert isinstance(other, Accepted)
    assert rig.next_offset() == 1


def test_a_failed_sync_fails_the_whole_flush_and_the_next_works(rig: Rig) -> None:
    rig.store.gate.clear()
    leader = in_background(rig.group.submit(PushStream(), rig.batch(0), awaited=True).outcome)
    assert rig.store.entered.acquire(timeout=60)
    shared = [rig.group.submit(PushStream(), rig.batch(n), awaited=False) for n in range(3)]
    rig.files.fail("sync", errno.EIO, after=1)
    rig.store.gate.set()
    leader.join(timeout=60)
    for pending in shared:
        with pytest.raises(Internal):
            pending.accepted()
    rig.group.submit(PushStream(), rig.batch(9), awaited=True).accepted()
    assert rig.next_offset() == 2
    rig.group.close()
    assert [report.failed for report in rig.reports] == [False, True, False]


class Panic(BaseException):
    """As extensions in Rust raise them, which is no `Exception`."""


@pytest.mark.parametrize("awaited", [True, False])
def test_a_panic_fails_its_flush_and_the_next_works(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, awaited: bool
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(rig.files, "sync", raising(Panic("out of bounds")))
        failed = outcome(rig.group.submit(PushStream(), rig.batch(0), awaited=awaited))
        assert isinstance(failed, Rejected)
        assert isinstance(failed.error, Internal)
    result = outcome(rig.group.submit(PushStream(), rig.batch(1), awaited=awaited))
    assert isinstance(result, Accepted)


def test_whoever_runs_a_flush_may_be_interrupted_and_the_others_hear_of_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(rig.files, "sync", raising(KeyboardInterrupt()))
        first, other = (rig.group.submit(PushStream(), rig.batch(0), awaited=True) for _ in "ab")
        with pytest.raises(KeyboardInterrupt):
            first.outcome()
        result = outcome(other)
        assert isinstance(result, Rejected)
        assert isinstance(result.error, Unavailable)
        assert result.error.in_doubt
    assert rig.group.pending_bytes == 0
    result = outcome(rig.group.submit(PushStream(), rig.batch(1), awaited=False))
    assert isinstance(result, Accepted)


def test_a_batch_whose_submission_was_interrupted_is_not_counted_for_good(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = PushStream()
    rig.group.submit(stream, rig.batch(0), awaited=True)
    with monkeypatch.context() as patched:
        patched.setattr(PreparedBatch, "join", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            rig.group.submit(stream, rig.batch(1), awaited=True)
    result = outcome(rig.group.submit(PushStream(), rig.batch(2), awaited=True))
    assert isinstance(result, Accepted)
    assert rig.group.pending_bytes == 0


def test_closing_commits_what_is_pending_and_refuses_what_comes_later(rig: Rig) -> None:
    rig.store.gate.clear()
    pending = [rig.group.submit(PushStream(), rig.batch(n), awaited=True) for n in range(3)]
    closing = in_background(rig.group.close)
    rig.store.gate.set()
    closing.join(timeout=60)
    assert not closing.is_alive()
    assert all(isinstance(batch.outcome(), Accepted) for batch in pending)
    with pytest.raises(Unavailable):
        rig.group.submit(PushStream(), rig.batch(4), awaited=True)
    assert rig.group.pending_bytes == 0


MakeRig = Callable[..., Rig]


@pytest.fixture
def gathering(tmp_path: Path) -> Iterator[MakeRig]:
    """Return a function that makes a group commit which lingers batches for each flush."""
    made: list[Rig] = []

    def make(limits: Limits, room: Room | None = None) -> Rig:
        made.append(Rig(tmp_path, limits, lingers=True, inline=room))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def test_batches_are_gathered_until_they_are_enough(gathering: MakeRig) -> None:
    rig = gathering(Limits(object_flush_seconds=60, object_flush_bytes=1_000))
    pending = [rig.group.submit(PushStream(), rig.batch(0), awaited=True)]
    size = rig.group.pending_bytes
    while len(pending) * size < 1_000:
        assert not pending[0].done
        assert not rig.reports
        pending.append(rig.group.submit(PushStream(), rig.batch(len(pending)), awaited=True))
    assert all(isinstance(each.outcome(), Accepted) for each in pending)
    rig.group.close()  # The report comes after the outcomes.
    assert [report.batches for report in rig.reports] == [len(pending)]


def test_a_batch_that_stays_alone_is_flushed_after_the_time(gathering: MakeRig) -> None:
    rig = gathering(Limits(object_flush_seconds=0.01))
    for number in range(3):
        pending = rig.group.submit(PushStream(), rig.batch(number), awaited=number % 2 == 0)
        assert isinstance(pending.outcome(), Accepted)
    rig.group.close()
    assert len(rig.reports) == 3


def test_what_is_gathered_is_committed_at_the_close(gathering: MakeRig) -> None:
    rig = gathering(Limits(object_flush_seconds=60))
    pending = [rig.group.submit(PushStream(), rig.batch(n), awaited=False) for n in range(3)]
    rig.group.close()
    assert all(isinstance(each.outcome(), Accepted) for each in pending)
    assert rig.next_offset() == 3


def test_a_fault_after_a_flush_does_not_end_the_flusher(
    gathering: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = gathering(Limits(object_flush_seconds=0.001))
    monkeypatch.setattr(rig.group, "_on_flush", raising(Panic("a metric is broken")))
    for number in range(2):
        pending = rig.group.submit(PushStream(), rig.batch(number), awaited=False)
        assert isinstance(outcome(pending), Accepted)


def test_what_no_thread_flushes_any_more_is_left_to_the_flusher(gathering: MakeRig) -> None:
    room = Room()
    rig = gathering(Limits(object_flush_seconds=0.01), room)
    room.is_there = True
    pending = rig.group.submit(PushStream(), rig.batch(0), awaited=True)
    room.is_there = False  # Others filled it since.
    assert isinstance(outcome(pending), Accepted)


def test_the_flusher_goes_on_where_another_thread_flushed_what_it_gathered(
    gathering: MakeRig,
) -> None:
    room = Room()
    rig = gathering(Limits(object_flush_seconds=2.5), room)
    gathered = rig.group.submit(PushStream(), rig.batch(0), awaited=False)
    assert room.asked_by_flusher.acquire(timeout=60)
    room.is_there = True
    assert isinstance(
        rig.group.submit(PushStream(), rig.batch(1), awaited=True).outcome(), Accepted
    )
    assert gathered.done
    assert room.asked_by_flusher.acquire(timeout=60), "its time is over, and nothing is pending"
    room.is_there = False
    pending = rig.group.submit(PushStream(), rig.batch(2), awaited=False)
    assert isinstance(outcome(pending), Accepted)


def test_the_flusher_waits_for_a_flush_that_began_while_it_gathered(gathering: MakeRig) -> None:
    room = Room()
    rig = gathering(Limits(object_flush_seconds=2.5), room)
    rig.store.gate.clear()
    rig.group.submit(PushStream(), rig.batch(0), awaited=False)
    assert room.asked_by_flusher.acquire(timeout=60)
    room.is_there = True
    flushed = rig.group.submit(PushStream(), rig.batch(1), awaited=True)
    thread = in_background(flushed.outcome)
    assert rig.store.entered.acquire(timeout=60)
    later = rig.group.submit(PushStream(), rig.batch(2), awaited=False)
    assert room.asked_by_flusher.acquire(timeout=60), "its time is over"
    assert not rig.store.entered.acquire(timeout=0.3), "two flushes at once"
    rig.store.gate.set()
    assert isinstance(outcome(later), Accepted)
    thread.join(timeout=60)
