"""The pages of an SQLite file as they lie on the disk, with what its write-ahead log has on top.

SQLite refuses a tree at its first damaged page; here each page stands for itself. The formats are
those of https://www.sqlite.org/fileformat2.html. Nothing is written, and no lock is taken.
"""

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Self

PAGE_BYTES = 4_096
"""The page size of Wings' files, for those whose header does not fit their length."""

SCHEMA_PAGE = 1
"""The root of the tree that lists all others; pages are counted from 1."""

HEADER_BYTES = 100
"""Length of the database's header, at the beginning of page 1."""

_MAGIC = b"SQLite format 3\0"
_LOG_DAMAGED = "the write-ahead log is damaged: what was committed"
_LOG_CUT_OFF = "the write-ahead log ends within a transaction, by a crash or cut off"
_LOG_READS, _LOG_READ_SECONDS = 3, 0.05
_FREE_LIST = struct.Struct(">II")
_FREE_LIST_AT = 32
_LOG_HEADER = struct.Struct(">8I")
_FRAME_HEADER = struct.Struct(">6I")
_LOG_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
"""The byte orders of the log's checksums, by its magic number."""
_ORDER = "<" if sys.byteorder == "little" else ">"
"""Byte order of logs written on this machine."""


class DatabaseFile:
    """One file, open for reading; a context manager.

    Args:
        path: The database; its log is beside it, if there is one.

    Attributes:
        problems: Damage to the file as a whole, filled as it is read.
        losses: The same, where transactions are lost of which nothing else tells.
        log_problems: The losses that no crash explains.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.problems: list[str] = []
        self.losses: list[str] = []
        self.log_problems: list[str] = []
        self._data: mmap.mmap | bytes = b""
        with path.open("rb") as file:
            if path.stat().st_size:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.page_bytes = self._page_bytes()
        self._newer: dict[int, bytes] = {}
        log = path.with_name(f"{path.name}-wal")
        if log.exists():
            self._newer = self._committed(log.read_bytes())
        whole = len(self._data) // self.page_bytes
        self.pages = max(whole, max(self._newer, default=0))
        """How many there are; the last may be missing from a file that is cut off."""
        if len(self._data) % self.page_bytes:
            self.problems.append("it ends within a page: it is cut off")
        first = self.page(SCHEMA_PAGE)
        if first is None or not first.startswith(_MAGIC):
            self.problems.append("it does not begin as a database")

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        if isinstance(self._data, mmap.mmap):
            self._data.close()

    @classmethod
    def log_problems_of(cls, path: Path) -> list[str]:
        """Return what is wrong with a file's write-ahead log, which SQLite reads past in silence.

        A process may have the file open, and begin its log anew while it is read: what is wrong is
        so each time.
        """
        found: list[str] = []
        for _ in range(_LOG_READS):
            with cls(path) as file:
                found = file.log_problems
            if not found:
                break
            time.sleep(_LOG_READ_SECONDS)
        return found

    def page(self, number: int) -> bytes | None:
        """Return a page, None where the file has none of this number."""
        newer = self._newer.get(number)
        if newer is not None:
            return newer
        start = (number - 1) * self.page_bytes
        if number < 1 or start + self.page_bytes > len(self._data):
            return None
        return self._data[start : start + self.page_bytes]

    def free_pages(self) -> set[int]:
        """Return the pages that the file's list of free ones names; what is wrong is noted."""
        first = self.page(SCHEMA_PAGE)
        free: set[int] = set()
        if first is None:
            return free
        trunk, count = _FREE_LIST.unpack_from(first, _FREE_LIST_AT)
        while trunk:
            data = self.page(trunk)
            if data is None or trunk in free:
                break
            free.add(trunk)
            trunk, leaves = _FREE_LIST.unpack_from(data)
            if leaves > self.page_bytes // 4 - 2:
                break
            free.update(struct.unpack_from(f">{leaves}I", data, _FREE_LIST.size))
        if len(free) != count:
            self.problems.append("its list of free pages is damaged")
        return free

    def _page_bytes(self) -> int:
        head = self._data[:HEADER_BYTES]
        if len(head) < HEADER_BYTES:
            return PAGE_BYTES
        (size,) = struct.unpack_from(">H", head, 16)
        (pages,) = struct.unpack_from(">I", head, 28)
        size = 65_536 if size == 1 else size
        fits = size >= 512 and not size & (size - 1) and size * pages == len(self._data)
        return size if fits else PAGE_BYTES

    def _committed(self, log: bytes) -> dict[int, bytes]:
        """Return the pages of the transactions in a log that are whole, as SQLite would.

        What comes after a damaged frame is lost: it is noted, as is an end within a transaction.
        """
        if len(log) < _LOG_HEADER.size:
            return {}
        magic, _, page_bytes, _, *salts, sum_1, sum_2 = _LOG_HEADER.unpack_from(log)
        step = _FRAME_HEADER.size + self.page_bytes
        order = _LOG_MAGIC.get(magic)
        sums = (0, 0) if order is None else _sums(order, log[:24], (0, 0))
        if order is None or sums != (sum_1, sum_2) or page_bytes != self.page_bytes:
            if any(log):
                # A header that is of these frames was whole when they were written.
                commits = _commits(log, _LOG_HEADER.size, step, order or _ORDER, salts)
                self._lose(f"{_LOG_DAMAGED} last may be lost", commits)
            return {}
        committed: dict[int, bytes] = {}
        running: dict[int, bytes] = {}
        at = _LOG_HEADER.size
        while at + step <= len(log):
            page, size, *found, sum_1, sum_2 = _FRAME_HEADER.unpack_from(log, at)
            data = log[at + _FRAME_HEADER.size : at + step]
            sums = _sums(order, data, _sums(order, log[at : at + 8], sums))
            if found != salts or sums != (sum_1, sum_2):
                break
            running[page] = data
            if size:
                committed.update(running)
                running = {}
            at += step
        if commits := _commits(log, at, step, order, salts):
            self._lose(f"{_LOG_DAMAGED} after that is lost", commits)
        elif at < len(log) < at + step or (running and at == len(log)):
            self.losses.append(f"{_LOG_CUT_OFF}: what was committed last may be lost")
        return committed

    def _lose(self, message: str, commits: int) -> None:
        self.losses.append(message)
        # One may be of a transaction that was not synced when power was lost, or whose sync failed.
        if commits > 1:
            self.log_problems = self.losses


def _commits(log: bytes, at: int, step: int, order: str, salts: list[int]) -> int:
    """Return how many transactions end in a run of frames, the most of all runs from a place on.

    The frames of a run were appended one to the other. Two transactions that did not, one of which
    replaces another that failed, are in two.
    """
    most = commits = 0
    sums = (0, 0)
    while at + step <= len(log):
        _, size, *found, sum_1, sum_2 = _FRAME_HEADER.unpack_from(log, at)
        data = log[at + _FRAME_HEADER.size : at + step]
        if _sums(order, data, _sums(order, log[at : at + 8], sums)) != (sum_1, sum_2):
            commits = 0
        commits += bool(size) and found == salts
        most = max(most, commits)
        sums = sum_1, sum_2
        at += step
    return most


def _sums(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second
