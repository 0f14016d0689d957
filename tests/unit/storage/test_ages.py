"""Which objects are old, where the clock of the one who asks is off."""

import pytest

from wings_core.storage.folio_stores import Ages
from wings_core.storage.objects.interfaces import StoredObject

GRACE = 300.0


@pytest.fixture
def clocks() -> dict[str, float]:
    """The time of this node, by its wall clock and by the monotonic one."""
    return {"wall": 10_000.0, "monotonic": 50.0}


@pytest.fixture
def ages(clocks: dict[str, float]) -> Ages:
    return Ages(GRACE, lambda: clocks["wall"], lambda: clocks["monotonic"])


def stored(**modified_at: float) -> list[StoredObject]:
    return [StoredObject(name, 1, at) for name, at in modified_at.items()]


def test_an_object_is_old_when_another_was_stored_much_later(ages: Ages) -> None:
    listed = stored(old=9_000, edge=9_690, young=9_691, new=9_990)
    assert ages.old(listed) == {"old", "edge"}


def test_a_clock_that_is_ahead_makes_nothing_old(ages: Ages, clocks: dict[str, float]) -> None:
    listed = stored(older=1_000, old=9_000, young=9_995, new=10_000)
    clocks["wall"] += 600
    assert ages.old(listed) == {"older", "old"}
    clocks["monotonic"] += GRACE - 1
    assert ages.old(stored(young=9_995, new=10_000)) == set()


def test_what_was_seen_for_long_is_old_though_nothing_was_stored_since(
    ages: Ages, clocks: dict[str, float]
) -> None:
    assert ages.old(stored(last=10_000)) == set()
    for name in clocks:
        clocks[name] += GRACE
    assert ages.old(stored(last=10_000, later=10_299)) == {"last"}
    for name in clocks:
        clocks[name] += GRACE
    assert ages.old(stored(later=10_299)) == {"later"}


def test_a_clock_that_is_behind_only_waits_for_longer(ages: Ages, clocks: dict[str, float]) -> None:
    clocks["wall"] -= 600
    listed = stored(a=9_000, b=9_500, new=10_000)
    assert ages.old(listed) == {"a"}
    clocks["monotonic"] += GRACE
    clocks["wall"] += GRACE
    assert ages.old(listed) == {"a"}
    clocks["wall"] += GRACE
    assert ages.old(listed) == {"a", "b"}


def test_what_is_much_older_than_any_clock_is_wrong_is_old_though_it_is_the_last(
    ages: Ages, clocks: dict[str, float]
) -> None:
    clocks["wall"] += 3_600 + GRACE
    assert ages.old(stored(last=10_000)) == {"last"}
    clocks["wall"] -= 1
    assert ages.old(stored(last=10_000)) == set()


def test_nothing_listed_is_nothing_old(ages: Ages) -> None:
    assert ages.old([]) == set()
