from wings_core.storage.lru import Lru


def test_the_entry_unused_for_longest_is_forgotten() -> None:
    lru: Lru[str, int] = Lru(2)
    lru.put("a", 1)
    lru.put("b", 2)
    assert lru.get("a") == 1
    lru.put("c", 3)
    assert (lru.get("a"), lru.get("b"), lru.get("c")) == (1, None, 3)
    assert len(lru) == 2


def test_putting_an_entry_again_replaces_it() -> None:
    lru: Lru[str, int] = Lru(2)
    lru.put("a", 1)
    lru.put("b", 2)
    lru.put("a", 3)
    lru.put("c", 4)
    assert (lru.get("a"), lru.get("b")) == (3, None)


def test_discarded_entries_are_gone() -> None:
    lru: Lru[str, int] = Lru(2)
    lru.put("a", 1)
    lru.discard("a")
    lru.discard("never there")
    assert lru.get("a") is None
    lru.put("b", 2)
    lru.clear()
    assert len(lru) == 0


def test_heavy_entries_push_out_more_than_one() -> None:
    lru: Lru[str, int] = Lru(10)
    for key in "abcde":
        lru.put(key, 0, weight=2)
    lru.put("f", 0, weight=5)
    assert [key for key in "abcdef" if lru.get(key) is not None] == ["d", "e", "f"]
    lru.put("d", 0, weight=1)
    lru.put("g", 0, weight=2)
    assert [key for key in "abcdefg" if lru.get(key) is not None] == ["d", "e", "f", "g"]


def test_the_entry_used_last_is_kept_whatever_it_weighs() -> None:
    lru: Lru[str, int] = Lru(3)
    lru.put("a", 1)
    lru.put("heavy", 2, weight=100)
    assert (lru.get("a"), lru.get("heavy")) == (None, 2)
    lru.put("b", 3)
    assert (lru.get("heavy"), lru.get("b")) == (None, 3)


def test_whoever_asked_is_told_what_was_forgotten_for_another() -> None:
    forgotten: list[str] = []
    lru: Lru[str, int] = Lru(2, forgotten.append)
    for key in "abac":
        lru.put(key, 1)
    lru.discard("a")
    assert forgotten == ["b"]


def test_all_keys_of_which_a_condition_holds_are_discarded() -> None:
    lru: Lru[int, str] = Lru(10)
    for key in range(10):
        lru.put(key, "x")
    lru.discard_where(lambda key: key % 2 == 0)
    assert [key for key in range(10) if lru.get(key) is not None] == [1, 3, 5, 7, 9]
    for key in range(20, 25):
        lru.put(key, "x")
    assert len(lru) == 10


def test_a_group_is_discarded_and_no_other_key() -> None:
    lru: Lru[tuple[str, int], int] = Lru(5, group_of=lambda key: key[0])
    for number in range(3):
        lru.put(("a", number), number)
        lru.put(("b", number), number)  # The last pushes out the first of "a".
    lru.put(("a", 1), 7)
    lru.discard_group("a")
    lru.discard_group("never there")
    assert [lru.get(("b", number)) for number in range(3)] == [0, 1, 2]
    assert len(lru) == lru.weight == 3
    lru.put(("a", 1), 8)
    assert lru.get(("a", 1)) == 8
    lru.clear()
    lru.discard_group("a")
    assert len(lru) == 0
