"""The verdicts of handlers, and how long what failed waits."""

import pyarrow as pa
import pytest

from wings_client import Delivery, Message, Reject, Release
from wings_client._worker_model import BackoffPolicy, Task
from wings_client.arrow import RecordBatch
from wings_core.contracts.share import DELAY_MS_MAX, REASON_CHARACTERS_MAX

NONE = BackoffPolicy(0, 0)


def delivery(offsets: list[int], count: int = 1) -> Delivery:
    """A delivery of these offsets; others of its range are gone by retention."""
    columns = {"n": pa.array(offsets), "__offset": pa.array(offsets)}
    nothing = pa.nulls(len(offsets))
    system = dict.fromkeys(("__timestamp", "__partition", "__delivery_count", "__lease"), nothing)
    batch = RecordBatch.from_pydict({**columns, **system})
    return Delivery(batch, None, offsets[0], offsets[-1], "lease", count, 30.0)


def settled(task: Task, error: BaseException | None) -> list[tuple[object, ...]]:
    return [(each.kind, *each.ranges, each.reason) for each in task.settlements(error, NONE)]


def test_what_is_not_judged_is_accepted(subtests: pytest.Subtests) -> None:
    batch = Task(delivery([3, 4, 6, 7]))
    row = Task(batch.delivery, Message(batch.delivery, 2))
    cases: list[tuple[Task, BaseException | None, list[tuple[object, ...]]]] = [
        (batch, None, [("accept", (3, 7), None)]),
        (row, None, [("accept", (6, 6), None)]),
        (batch, ValueError("x"), [("release", (3, 7), "ValueError: x")]),
        (batch, ValueError(), [("release", (3, 7), "ValueError")]),
        (batch, Reject(), [("reject", (3, 7), None)]),
        (row, Reject("x", rows=[0]), [("reject", (6, 6), "x")]),
        (batch, Reject("x", rows=[]), [("accept", (3, 7), None)]),
        (
            batch,
            Reject("x", rows=[1, -1]),
            [("reject", (4, 4), (7, 7), "x"), ("accept", (3, 3), (5, 6), None)],
        ),
        (
            batch,
            ExceptionGroup("", [Release("a", rows=0), Reject("b", rows=slice(0, 2)), Release("c")]),
            [("release", (3, 3), "a"), ("reject", (4, 4), "b"), ("release", (5, 7), "c")],
        ),
    ]
    for task, error, expected in cases:
        with subtests.test(repr(error)):
            assert settled(task, error) == expected


def test_a_reason_is_one_that_may_be_sent() -> None:
    (found,) = Task(delivery([1])).settlements(Reject("\ud800é" * REASON_CHARACTERS_MAX), NONE)
    assert found.reason == "?é" * (REASON_CHARACTERS_MAX // 2)
    assert found.entries()[0].reason == found.reason


def test_delays_double_up_to_a_bound() -> None:
    policy = BackoffPolicy(2.0, 60.0)
    for count, nominal in ((1, 2), (2, 4), (5, 32), (6, 60), (7, 60), (10_000, 60)):
        for _ in range(20):
            assert nominal / 2 <= policy.delay(count) <= nominal
    (found,) = Task(delivery([1], count=3)).settlements(ValueError(), policy)
    assert found.delay is not None
    assert 4 <= found.delay <= 8


def test_a_delay_is_one_that_may_be_asked_for() -> None:
    for delay, sent in ((-5.0, 0), (1.5, 1_500), (1e12, DELAY_MS_MAX)):
        (found,) = Task(delivery([1])).settlements(Release(delay=delay), NONE)
        assert found.entries()[0].delay_ms == sent
