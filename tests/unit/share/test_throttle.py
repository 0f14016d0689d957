import pytest

from wings_core.share.state.partition import deliverable


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, [500]),
        (2, [500, 500]),
        (3, [500, 500, 1]),
        (4, [500, 500, 250, 1]),
        (5, [500, 500, 500, 250, 1]),
        (10, [500, 500, 500, 500, 500, 250, 125, 62, 31, 1]),
    ],
)
def test_the_more_often_a_range_was_delivered_the_smaller_the_pieces(
    limit: int, expected: list[int]
) -> None:
    assert [deliverable(count, 500, limit) for count in range(limit)] == expected


def test_at_least_one_message_is_delivered() -> None:
    assert [deliverable(count, 3, 100) for count in (49, 50, 51, 52, 90)] == [3, 1, 1, 1, 1]
