"""A small bounded memory of what was used last, safe from many threads."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """A mapping that forgets the entry unused for longest once it holds more than its bound.

    Its lock is held for a few dictionary operations and never while anything else is called.

    Args:
        weight_max: Most weight kept: of entries, unless they are put with weights of their own.
            The entry used last is kept whatever it weighs.
        on_forget: Called with each key that is forgotten for another, not under the lock.
        group_of: The group of a key, for `discard_group`.
    """

    def __init__(
        self,
        weight_max: int,
        on_forget: Callable[[K], None] | None = None,
        group_of: Callable[[K], Hashable] | None = None,
    ) -> None:
        self._weight_max = weight_max
        self._on_forget = on_forget
        self._group_of = group_of
        self._groups: dict[Hashable, set[K]] = {}
        """The keys of each group; empty where none are told of."""
        self._weight = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return the value of a key and count it as used, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Keep a value as the one used last; the oldest entries may be forgotten for it."""
        forgotten: list[tuple[K, V]] = []
        with self._lock:
            replaced = self._pop(key) if key in self._entries else None
            self._entries[key] = (value, weight)
            self._weight += weight
            if self._group_of is not None:
                self._groups.setdefault(self._group_of(key), set()).add(key)
            while self._weight > self._weight_max and len(self._entries) > 1:
                oldest = next(iter(self._entries))
                popped = self._pop(oldest)
                assert popped is not None
                forgotten.append((oldest, popped[0]))
        # Both may be costly to take down (a file's map): not under the lock.
        del replaced
        for oldest, _ in forgotten:
            if self._on_forget is not None:
                self._on_forget(oldest)

    def discard(self, key: K) -> bool:
        """Forget a key; tell whether it was there."""
        with self._lock:
            discarded = self._pop(key)
        return discarded is not None

    def discard_group(self, group: Hashable) -> None:
        """Forget the keys of a group; looks at no others."""
        with self._lock:
            discarded = [self._pop(key) for key in list(self._groups.get(group, ()))]
        del discarded

    def discard_where(self, condition: Callable[[K], bool]) -> list[K]:
        """Forget the keys of which a condition holds, and return them; looks at all of them."""
        with self._lock:
            keys = [key for key in self._entries if condition(key)]
            discarded = [self._pop(key) for key in keys]
        del discarded
        return keys

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            entries, self._entries = self._entries, OrderedDict()
            self._groups.clear()
            self._weight = 0
        entries.clear()

    def __contains__(self, key: K) -> bool:
        """Tell whether a key is there, without counting it as used."""
        return key in self._entries

    def __len__(self) -> int:
        """Return the number of entries kept."""
        return len(self._entries)

    @property
    def weight(self) -> int:
        """The weight of all entries kept."""
        return self._weight

    def _pop(self, key: K) -> tuple[V, int] | None:
        """Take an entry out; with the lock held."""
        popped = self._entries.pop(key, None)
        if popped is None:
            return None
        self._weight -= popped[1]
        if self._group_of is not None:
            group = self._group_of(key)
            keys = self._groups[group]
            keys.discard(key)
            if not keys:
                del self._groups[group]
        return popped
