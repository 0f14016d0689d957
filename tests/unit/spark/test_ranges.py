from hypothesis import given
from hypothesis import strategies as st

from wings_core.partitions import Partition
from wings_spark.ranges import TASK_ROWS_MIN, Range, ReadTask, pack, share

SIZES = st.lists(st.integers(0, 1_000_000), max_size=20)


def ranges_of(sizes: list[int]) -> list[Range]:
    return [
        Range("t", "uuid", Partition(str(number)), 10, 10 + size)
        for number, size in enumerate(sizes)
    ]


@given(SIZES, st.integers(0, 10_000_000))
def test_a_budget_is_shared_out_exactly_and_to_none_more_than_it_has(
    sizes: list[int], budget: int
) -> None:
    shares = share(budget, sizes)
    assert sum(shares) == min(budget, sum(sizes))
    for got, size in zip(shares, sizes, strict=True):
        assert 0 <= got <= size
        # In proportion, but for rounding and for the one that each gets.
        if budget < sum(sizes):
            assert abs(got - size * budget / sum(sizes)) <= 1 + len(sizes)
    if budget >= len(sizes):
        assert all(got > 0 for got, size in zip(shares, sizes, strict=True) if size)


def spans_of(tasks: list[ReadTask]) -> dict[Partition, list[tuple[int, int]]]:
    found: dict[Partition, list[tuple[int, int]]] = {}
    for task in tasks:
        for partition, start_offset, end_offset in task.spans:
            found.setdefault(partition, []).append((start_offset, end_offset))
    return found


@given(SIZES, st.none() | st.integers(1, 100), st.none() | st.integers(1_000_000, 20_000_000))
def test_tasks_are_near_equal_and_cover_every_row_once_in_order(
    sizes: list[int], tasks_min: int | None, task_rows: int | None
) -> None:
    tasks = pack(ranges_of(sizes), tasks_min, task_rows)
    assert all(task.rows > 0 for task in tasks)
    for each in ranges_of(sizes):
        spans = spans_of(tasks).get(each.partition, [])
        offsets = [offset for span in spans for offset in span]
        assert offsets == sorted(offsets)
        assert sum(end - start for start, end in spans) == each.rows
        if spans:
            assert (offsets[0], offsets[-1]) == (each.start_offset, each.end_offset)
    if tasks:
        assert max(task.rows for task in tasks) - min(task.rows for task in tasks) <= 1
        assert max(task.rows for task in tasks) <= (task_rows or 10_000_000)
    if tasks_min:
        least = min(tasks_min, sum(sizes))
        assert len(tasks) == max(least, -(-sum(sizes) // (task_rows or 10_000_000)))
    elif len(tasks) > 1:
        assert min(task.rows for task in tasks) >= min(TASK_ROWS_MIN, (task_rows or 10**7) // 2)


def test_topics_share_the_tasks_by_their_rows() -> None:
    sizes = {"a": 600, "b": 0, "c": 1}
    ranges = [Range(name, name, Partition("null"), 0, rows) for name, rows in sizes.items()]
    tasks = pack(ranges, 3)
    assert [(task.topic, task.rows) for task in tasks] == [
        ("a", 200),
        ("a", 200),
        ("a", 200),
        ("c", 1),
    ]


def test_many_partitions_are_a_few_tasks() -> None:
    assert [task.rows for task in pack(ranges_of([3] * 9_000))] == [27_000]
    assert [task.rows for task in pack(ranges_of([1, 3] * 1_000), 4)] == [1_000] * 4
    assert len(pack(ranges_of([1] * 25_000))) == 3  # What one ticket may name is bounded.


def test_nothing_to_read_is_no_task() -> None:
    assert pack(ranges_of([0, 0]), 8) == []
