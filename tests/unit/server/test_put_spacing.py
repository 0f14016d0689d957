"""Which batches of a put stream come alone, so that the thread that reads flushes them itself."""

from collections.abc import Iterable

from wings_server.flight.do_put import ALONE_BYTES, ALONE_MAX, ALONE_SECONDS, Spacing

SMALL = 100


def told(*came: tuple[float, bool], size: int = SMALL) -> list[bool]:
    """Return which batches come alone, by how long each was waited for and whether it was idle."""
    spacing = Spacing()
    return [spacing.is_alone(size, seconds, idle=idle) for seconds, idle in came]


def each(came: tuple[float, bool], times: int) -> Iterable[tuple[float, bool]]:
    return [came] * times


WAITED, AT_ONCE = (ALONE_SECONDS, True), (ALONE_SECONDS / 2, True)
BEFORE_THE_ANSWER = (1.0, False)


def test_the_first_comes_alone_and_those_that_are_waited_for_after_another() -> None:
    assert told(AT_ONCE, WAITED, WAITED, WAITED) == [True, False, True, True]
    assert told(AT_ONCE, AT_ONCE, WAITED, AT_ONCE, WAITED) == [True] + [False] * 4


def test_what_comes_before_the_answer_to_the_one_before_it_does_not_come_alone() -> None:
    came = [WAITED, WAITED, WAITED, BEFORE_THE_ANSWER, WAITED, WAITED]
    assert told(*came) == [True, False, True, False, False, True]
    assert told(*each(BEFORE_THE_ANSWER, 100)) == [True] + [False] * 99


def test_a_large_one_does_not_come_alone() -> None:
    assert not any(told(*each(WAITED, 10), size=ALONE_BYTES + 1))


def test_the_next_is_read_before_the_answer_now_and_then() -> None:
    alone = told(*each(WAITED, 10 * ALONE_MAX))
    assert [number for number, each in enumerate(alone[2:], 2) if not each] == [
        ALONE_MAX * times for times in range(1, 10)
    ]
