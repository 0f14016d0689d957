"""Followers: calls that wait and streams, which go on with their group as it is by then.

They hear at once of a group that is altered or deleted here, and of other nodes' changes by a
look-up from time to time, one for all followers of a group.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from wings_core.errors import NotFound, ResourceExhausted, WingsError
from wings_core.model import ShareGroup
from wings_core.share.coordinator.upkeep import Loop

FOLLOWERS_MAX = 16_384
"""Most followers at once; further ones are refused."""

LOOK_SECONDS = 0.5
"""Interval at which followed groups are looked up."""

LOOKS_MAX = 100
"""Most groups looked up at a time; the others have their turn later."""

FindGroup = Callable[[ShareGroup], ShareGroup]
"""Returns a group as it is now; raises `NotFound` where it is not there any more."""

_logger = logging.getLogger(__name__)


class Followers:
    """The followers of groups on this node; all methods from any thread.

    Args:
        find_group: Looks a group up, for changes by other nodes; None: there are no others.
        altered: Called with a group that is another by now.
        deleted: Called with a group that is not there any more.

    Attributes:
        groups: The groups that have followers, as last heard of, by UUID.
    """

    def __init__(
        self,
        find_group: FindGroup | None,
        altered: Callable[[ShareGroup], None],
        deleted: Callable[[ShareGroup], None],
    ) -> None:
        self._find_group = find_group
        self._altered = altered
        self._deleted = deleted
        self._lock = threading.Lock()
        self.groups: dict[str, ShareGroup] = {}
        self._callbacks: dict[str, dict[object, Callable[[], None]]] = {}
        """The callbacks of each group's followers."""
        self._count = 0
        self._turns = itertools.count()
        self._is_closed = False
        self._looks = Loop("wings-share-groups", self.look)

    @contextmanager
    def following(self, group: ShareGroup, callback: Callable[[], None]) -> Generator[None]:
        """Call back during the block whenever the group was altered or deleted.

        Raises:
            ResourceExhausted: Too many follow already.
        """
        if self._find_group is not None:
            self._looks.start()
        token = object()
        with self._lock:
            if self._count >= FOLLOWERS_MAX:
                raise ResourceExhausted(f"{FOLLOWERS_MAX} wait for messages of groups already")
            self._count += 1
            self.groups.setdefault(group.uuid, group)
            callbacks = self._callbacks.setdefault(group.uuid, {})
            callbacks[token] = callback
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                del callbacks[token]
                if not callbacks:
                    del self._callbacks[group.uuid], self.groups[group.uuid]

    def hear(self, group: ShareGroup) -> None:
        """Let the followers of a group go on with it as it is now."""
        with self._lock:
            if group.uuid in self.groups:
                self.groups[group.uuid] = group

    def tell(self, group_uuid: str) -> None:
        """Call the followers of a group."""
        with self._lock:
            callbacks = list(self._callbacks.get(group_uuid, {}).values())
        for callback in callbacks:
            callback()

    def look(self) -> float:
        """Look up groups that have followers; returns the seconds until the next look."""
        with self._lock:
            groups = list(self.groups.values())
        begin = next(self._turns) * LOOKS_MAX % len(groups) if len(groups) > LOOKS_MAX else 0
        self.look_up((groups[begin:] + groups[:begin])[:LOOKS_MAX])
        return LOOK_SECONDS

    def look_up(self, groups: Sequence[ShareGroup]) -> None:
        """Look groups up for changes by other nodes; blocks for metadata."""
        for group in groups:
            if self._find_group is None or self._is_closed:
                return
            try:
                found = self._find_group(group)
            except NotFound:
                self._deleted(group)
            except WingsError as error:
                _logger.info("the group %s could not be looked up: %s", group.name, error.message)
            except Exception:
                _logger.exception("looking at the group %s failed", group.name)
            else:
                if found != group:
                    self._altered(found)

    def close(self) -> None:
        """Call all followers, and end the look-ups."""
        self._is_closed = True
        for group_uuid in list(self._callbacks):
            self.tell(group_uuid)
        self._looks.stop()
