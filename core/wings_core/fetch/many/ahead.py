"""Looks ahead: a thread finds the pages of the next turn while those of this one are sent."""

import threading
from collections.abc import Callable, Sequence

from wings_core.fetch.many.lookups import Lookup
from wings_core.fetch.many.rotation import PartitionCursor

AHEAD_PARTITIONS_MIN = 256
"""The least partitions of a turn that is looked up ahead: fewer take less than a thread's start."""


class LookAhead:
    """A look-up of the next turn, which its thread has begun.

    Args:
        cursors: The partitions of that turn, none of which is read meanwhile.
        each: The most rows of each.
        locate: Finds their pages.

    Raises:
        RuntimeError: No thread can be started.
    """

    def __init__(
        self, cursors: Sequence[PartitionCursor], each: int, locate: Callable[[], Lookup]
    ) -> None:
        self.cursors = cursors
        self.each = each
        self._places = _places(cursors)
        self._locate = locate
        self._found: Lookup | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="wings-look-ahead", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the partitions stand where they stood, and have no more rows than they had."""
        return self._places == _places(self.cursors)

    def found(self) -> Lookup:
        """Return what was found; blocks until it is known.

        Raises:
            WingsError: What the look-up failed with.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def end(self) -> None:
        """Wait until the look-up is over, whatever it finds."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._found = self._locate()
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for.
            self._error = error


def _places(cursors: Sequence[PartitionCursor]) -> list[tuple[int, int]]:
    return [(cursor.offset, cursor.stop) for cursor in cursors]
