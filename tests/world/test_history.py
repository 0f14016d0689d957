"""The checks of `history`: each says so where what must hold does not."""

import pytest
from history import History, Look, Place, Push

PLAIN = "plain", "null"
A, B = ("keyed", "a"), ("keyed", "b")


def history_of(*pushes: Push) -> History:
    return History(list(pushes))


def check(history: History, logs: dict[Place, tuple[int, list[int]]]) -> None:
    history.check(logs, 1_000)


def acknowledged(push: Push, time_ns: int = 100) -> Push:
    push.acknowledge(dict.fromkeys(push.rows, 0), time_ns)
    return push


def test_an_acknowledged_row_at_the_end_of_a_log_that_retention_cut_is_missed() -> None:
    first, last = Push("plain", {"null": [0, 1]}, "p"), Push("plain", {"null": [1_000]}, "p")
    first.acknowledge({"null": 0}, 100)
    last.acknowledge({"null": 2}, 200)
    history = history_of(first, last)
    history.deleted[PLAIN] = 2
    with pytest.raises(AssertionError, match="acknowledged in"):
        check(history, {PLAIN: (2, [])})
    history = history_of(first, last)
    history.deleted[PLAIN] = 2
    check(history, {PLAIN: (2, [1_000])})


def test_a_row_in_another_partition_is_one_that_nobody_pushed_there() -> None:
    history = history_of(acknowledged(Push("keyed", {"a": [0]}, None)))
    with pytest.raises(AssertionError, match="nobody pushed there"):
        check(history, {A: (0, [0]), B: (0, [0])})


def test_what_was_seen_is_seen_by_every_later_look() -> None:
    history = history_of(Push("plain", {"null": [0]}, None))
    history.see(PLAIN, 0, [0], 10)
    history.looks.append(Look({PLAIN: 0}, 10, 11))  # It began before.
    check(history, {PLAIN: (0, [0])})
    history.looks.append(Look({PLAIN: 0}, 11, 12))
    with pytest.raises(AssertionError, match="missed"):
        check(history, {PLAIN: (0, [0])})


def test_a_publish_that_one_topic_shows_is_to_be_seen_in_the_other() -> None:
    pushes = [
        Push("plain", {"null": [0]}, None, "w"),
        acknowledged(Push("keyed", {"a": [1_000]}, None, "w")),
    ]
    history = history_of(*map(acknowledged, pushes))
    history.looks += [Look({PLAIN: 1}, 10, 11, "plain"), Look({}, 12, 13, "keyed")]
    with pytest.raises(AssertionError, match="missed"):
        check(history, {PLAIN: (0, [0]), A: (0, [1_000])})


@pytest.mark.parametrize("ends", [{A: 2}, {A: 1, B: 2}])
def test_a_look_at_all_partitions_sees_no_part_of_a_push(ends: dict[Place, int]) -> None:
    history = history_of(acknowledged(Push("keyed", {"a": [0, 1], "b": [2, 3]}, None)))
    logs = {A: (0, [0, 1]), B: (0, [2, 3])}
    history.looks += [Look({}, 1, 2, "keyed"), Look({A: 2, B: 2}, 3, 4, "keyed")]
    check(history, logs)
    history.looks.append(Look(ends, 1, 2, "keyed"))
    with pytest.raises(AssertionError, match="a part of"):
        check(history, logs)


def test_an_end_that_was_seen_is_behind_no_end_of_the_log() -> None:
    history = history_of(acknowledged(Push("plain", {"null": [0]}, None)))
    history.looks.append(Look({PLAIN: 2}, 10, 11))
    with pytest.raises(AssertionError, match="saw more"):
        check(history, {PLAIN: (0, [0])})


def test_offsets_of_a_consumer_are_between_what_was_acknowledged_and_what_was_tried() -> None:
    history = History()
    history.committed["c", PLAIN], history.offered["c", PLAIN] = 3, 5
    for found in (3, 5):
        history.see_offsets("c", {PLAIN: found})
    wrong: list[dict[Place, int]] = [{PLAIN: 2}, {PLAIN: 6}, {}]
    for stored in wrong:
        with pytest.raises(AssertionError, match="not 3"):
            history.see_offsets("c", stored)
