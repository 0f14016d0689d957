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
