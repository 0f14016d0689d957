import pytest

from wings_core.errors import ResourceExhausted
from wings_core.fetch.waits import Waits


def test_no_more_than_the_bound_wait_at_once() -> None:
    waits = Waits(2)
    with waits.one(), waits.one():
        assert waits.waiting == 2
        with pytest.raises(ResourceExhausted), waits.one():
            pass
        assert waits.waiting == 2
    with waits.one():
        assert waits.waiting == 1
    assert (waits.waiting, waits.begun) == (0, 3)


def test_a_wait_that_fails_is_over() -> None:
    waits = Waits(1)
    with pytest.raises(ZeroDivisionError), waits.one():
        raise ZeroDivisionError
    assert waits.waiting == 0
