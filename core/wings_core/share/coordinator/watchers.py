"""Watchers: who waits for messages of which group, on this node.

They hear of a group that is altered or deleted here at once; `ready` tells of messages.
What other nodes do to a group is found by looking up the groups that have watchers, from time
to time, one look for all who wait for the same group.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from wings_core.errors import NotFound, ResourceExhausted, WingsError
from wings_core.model import ShareGroup

WATCHES_MAX = 16_384
"""How many may wait at once; further ones are refused."""

LOOK_SECONDS = 0.5
"""How often the groups that have watchers are looked up."""

LOOKS_MAX = 100
"""Groups looked at each time; of more, each has its turn."""

_logger = logging.getLogger(__name__)

FindGroup = Callable[[ShareGroup], ShareGroup]
"""Returns a group as it is now; raises `NotFound` where it is not there any more."""


@dataclass(slots=True)
class _Watched:
    """A group that has watchers."""

    group: ShareGroup
    """As last heard of."""
    callbacks: dict[object, Callable[[], None]] = field(
        default_factory=dict[object, Callable[[], None]]
    )


class Watchers:
    """Those who wait; all methods from any thread.

    Args:
        find: Looks at a group; None: no other node changes groups.
        ended: Called with a group that another node deleted.
        changed: Called with a group that was altered; wakes those who wait for it.
    """

    def __init__(
        self,
        find: FindGroup | None,
        ended: Callable[[ShareGroup], None],
        changed: Callable[[ShareGroup], None],
    ) -> None:
        self._find = find
        self._ended = ended
        self._changed = changed
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._watches = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def registered(self, group: ShareGroup, callback: Callable[[], None]) -> Generator[None]:
        """Call back during the block whenever the group is woken.

        Raises:
            ResourceExhausted: Too many wait already.
        """
        token = object()
        with self._lock:
            if self._watches >= WATCHES_MAX:
                raise ResourceExhausted(f"{WATCHES_MAX} wait for messages of groups already")
            self._watches += 1
            watched = self._watched.setdefault(group.uuid, _Watched(group))
            watched.callbacks[token] = callback
            self._start()
        try:
            yield
        finally:
            with self._lock:
                self._watches -= 1
                del watched.callbacks[token]
                if not watched.callbacks:
                    del self._watched[group.uuid]

    def current(self, group: ShareGroup) -> ShareGroup:
        """Return a group as last looked up, where it has watchers; else as it is given."""
        watched = self._watched.get(group.uuid)
        return group if watched is None else watched.group

    def altered(self, group: ShareGroup) -> None:
        """Hear of a group's new configuration, and tell of it."""
        with self._lock:
            watched = self._watched.get(group.uuid)
            if watched is not None:
                watched.group = group
        self._changed(group)  # Who is woken looks with what the group is now.

    def wake(self, group_uuid: str) -> None:
        """Call the callbacks of a group."""
        with self._lock:
            watched = self._watched.get(group_uuid)
            callbacks = [] if watched is None else list(watched.callbacks.values())
        for callback in callbacks:
            callback()

    def look(self, groups: Sequence[ShareGroup]) -> None:
        """Look up groups, with or without watchers; blocks for metadata."""
        for group in groups:
            if self._find is None or self._stopped.is_set():
                return
            self._look(self._find, group)

    def close(self) -> None:
        """Call all back, and end the thread; blocks for a look that is under way."""
        self._stopped.set()
        with self._lock:
            groups = list(self._watched)
            thread = self._thread
        for group_uuid in groups:
            self.wake(group_uuid)
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        """Begin to look at groups; the lock is held."""
        if self._find is None or self._thread is not None or self._stopped.is_set():
            return
        self._thread = threading.Thread(target=self._run, name="wings-share-groups", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for turn in itertools.count():
            if self._stopped.wait(LOOK_SECONDS):
                return
            with self._lock:
                groups = [watched.group for watched in self._watched.values()]
            begin = turn * LOOKS_MAX % len(groups) if len(groups) > LOOKS_MAX else 0
            self.look((groups[begin:] + groups[:begin])[:LOOKS_MAX])

    def _look(self, find: FindGroup, group: ShareGroup) -> None:
        try:
            found = find(group)
        except NotFound:
            self._ended(group)
        except WingsError as error:
            _logger.info("the group %s could not be looked up: %s", group.name, error.message)
        except Exception:
            _logger.exception("looking at the group %s failed", group.name)
        else:
            if found != group:
                self.altered(found)
