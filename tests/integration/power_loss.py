"""What a disk may hold after power was lost: from a record of what was written and synced.

`recorded_writes.c` records. A state is the record up to some point, of which each file keeps all
that its last sync covers; of what came after that, any change may be there, or missing, or there in
some of its sectors. Entries of a directory keep their order: those after its last sync may be
missing from some point on. That a file was created is durable once it was synced itself.

A sync that fails decides it: of each change that it was to make durable, the disk has all, some
sectors or nothing, and no later sync adds to that, as Linux takes what it could not write for
written. The process that made the changes, and those after it, read them as if they were there.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from struct import Struct
from typing import NamedTuple

RECORDER = Path(__file__).with_name("recorded_writes.c")
COMPILER = shutil.which("cc")

SECTOR_BYTES = 512

_RECORD = Struct("=QQqqQQ")


class Change(NamedTuple):
    """Something that was done to a file or directory."""

    kind: str
    inode: int
    first: int
    second: int
    path: Path
    data: bytes
    end: int
    """Where it ends in the record."""


def recorder(directory: Path, recorded: Path) -> tuple[dict[str, str], Path]:
    """Build the recorder.

    Args:
        directory: Where it is built, and records.
        recorded: The directory whose files are recorded.

    Returns:
        The variables of a process that is recorded, and the file of its record.
    """
    assert COMPILER is not None
    shim, record = directory / "recorded_writes.so", directory / "record"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", shim, RECORDER, "-ldl"], check=True)
    environment = {"LD_PRELOAD": str(shim), "RECORDED": str(recorded), "RECORD": str(record)}
    return environment, record


def fail_calls(
    failing: Path, ending: str, *, kind: str = "sync", after: int = 0, count: int = 1
) -> None:
    """Have calls fail in the processes whose variable `FAILING` names a file.

    Args:
        failing: The file; written anew.
        ending: How the paths of their files and directories end, a pattern of the shell.
        after: How many are made before.
        kind: "sync"; "write"; or "full", of writes that lengthen files.
        count: How many fail.
    """
    failing.write_text(f"{after} {count} *{ending} {kind}\n")


def read_record(record: Path) -> list[Change]:
    """Return what was recorded, in order; the last may be cut off, as the process was killed."""
    return list(changes_of(record.read_bytes()))


def changes_of(raw: bytes) -> Iterator[Change]:
    """Yield the changes in a part of a record that begins with one; `end` counts from there."""
    place = 0
    while place + _RECORD.size <= len(raw):
        kind, inode, first, second, path_length, data_length = _RECORD.unpack_from(raw, place)
        place += _RECORD.size
        end = place + path_length + data_length
        if end > len(raw):
            return
        path = _path(raw[place : place + path_length])
        place += path_length
        yield Change(chr(kind), inode, first, second, path, raw[place:end], end)
        place = end


@cache
def _path(data: bytes) -> Path:
    return Path(data.decode())


@dataclass
class _File:
    """A file: what is durable of it, and the changes after that."""

    durable: bytearray = field(default_factory=bytearray)
    changes: list[tuple[int, Change]] = field(default_factory=list[tuple[int, Change]])

    def settle(self, before: int) -> None:
        """Make durable what was done before a place in the record."""
        kept = [each for each in self.changes if each[0] >= before]
        for place, change in self.changes:
            if place < before:
                _apply(self.durable, change)
        self.changes = kept

    def lose(self, before: int, random: Random, keep: float, torn: float) -> None:
        """Decide what is there of what was done before a place, for good."""
        for place, change in self.changes:
            if place < before:
                _apply_some(self.durable, change, random, keep, torn)
        self.changes = [each for each in self.changes if each[0] >= before]


class Disk:
    """Follows a record, and makes states of what a disk may hold at each point of it.

    Args:
        root: The directory that was recorded.
        random: Chooses what syncs that failed have made.
    """

    def __init__(self, root: Path, random: Random) -> None:
        self._root = root
        self._random = random
        self._files: dict[int, _File] = {}
        self._names: dict[Path, int | None] = {}
        """What is durable of all directories; None: a directory."""
        self._entries: list[tuple[int, Change]] = []
        """Changes of directories that may be missing."""
        self._begun: dict[tuple[int, int, int], int] = {}
        self._numbers: dict[int, int] = {}
        """Of files, by inode: the numbers of inodes are used again."""
        self._place = 0

    def follow(self, change: Change) -> None:
        """Take the next record."""
        self._place += 1
        if change.kind == "c" or change.inode not in self._numbers:
            self._numbers[change.inode] = self._place
        change = change._replace(inode=self._numbers[change.inode])
        match change.kind:
            case "w" | "t":
                self._files.setdefault(change.inode, _File()).changes.append((self._place, change))
            case "b":
                self._begun[change.inode, change.first, change.second] = self._place
            case "e" | "f":
                begun = self._begun.pop((change.inode, change.first, change.second))
                if change.kind == "e":
                    self._synced(change, begun)
                elif change.inode in self._files:
                    keep, torn = _chances(self._random)
                    self._files[change.inode].lose(begun, self._random, keep, torn)
            case _:
                if change.kind == "c":
                    self._files[change.inode] = _File()
                self._entries.append((self._place, change))

    def hold(self) -> None:
        """Take what the directory has now for durable: what a crash before has left."""
        for path in sorted(self._root.rglob("*")):
            self._place += 1
            if path.is_dir():
                self._names[path] = None
                continue
            number = self._numbers.setdefault(path.stat().st_ino, self._place)
            self._names[path] = number
            self._files[number] = _File(bytearray(path.read_bytes()))

    def state(self, random: Random, directory: Path, keep: float | None = None) -> None:
        """Write one of the states that are possible now into a directory that is not there.

        Args:
            random: Chooses.
            directory: Made here.
            keep: How many of the changes that may be missing are there, 0 to 1; None: any.
        """
        directory.mkdir()
        names = dict(self._names)
        for _, change in self._entries[: random.randint(0, len(self._entries))]:
            _enter(names, change)
        chance, torn = _chances(random)
        keep = chance if keep is None else keep
        written: dict[int, Path] = {}
        for path, inode in sorted(names.items()):
            place = directory / path.relative_to(self._root)
            if inode is None:
                place.mkdir(exist_ok=True)
            elif inode in written:
                place.hardlink_to(written[inode])
            elif place.parent.is_dir():
                place.write_bytes(self._content(inode, random, keep, torn))
                place.chmod(0o600)
                written[inode] = place

    def _content(self, inode: int, random: Random, keep: float, torn: float) -> bytes:
        file = self._files.get(inode, _File())
        content = bytearray(file.durable)
        for _, change in file.changes:
            _apply_some(content, change, random, keep, torn)
        return bytes(content)

    def _synced(self, change: Change, begun: int) -> None:
        if change.inode in self._files:
            self._files[change.inode].settle(begun)
            # The entry of a file goes with its first sync, as journals of file systems have it.
            self._settle(lambda each: each.kind == "c" and each.inode == change.inode, begun)
        else:
            self._settle(lambda each: change.path in _directories(each), begun)

    def _settle(self, covers: Callable[[Change], bool], begun: int) -> None:
        last = max(
            (place for place, each in self._entries if place < begun and covers(each)), default=0
        )
        # The order of entries is kept: those before it are durable too.
        for place, each in self._entries:
            if place <= last:
                _enter(self._names, each)
        self._entries = [each for each in self._entries if each[0] > last]


def _directories(change: Change) -> set[Path]:
    found = {change.path.parent}
    if change.kind in "rl":
        found.add(Path(change.data.decode()).parent)
    return found


def _enter(names: dict[Path, int | None], change: Change) -> None:
    """Make a change of a directory's entries."""
    match change.kind:
        case "c":
            names[change.path] = change.inode
        case "d":
            names[change.path] = None
        case "u":
            names.pop(change.path, None)
        case "r":
            names.pop(change.path, None)
            names[Path(change.data.decode())] = change.inode
        case kind:
            assert kind == "l", kind
            names[Path(change.data.decode())] = change.inode


def _chances(random: Random) -> tuple[float, float]:
    """Choose how many changes that may be missing are there, and how many of those in part."""
    return random.choice((0.0, 0.5, 0.5, 0.9, 1.0)), random.choice((0.0, 0.3, 1.0))


def _apply_some(
    content: bytearray, change: Change, random: Random, keep: float, torn: float
) -> None:
    if random.random() >= keep:
        return
    if change.kind == "w" and random.random() < torn:
        for part in _sectors(change):
            if random.random() < 0.5:
                _apply(content, part)
    else:
        _apply(content, change)


def _apply(content: bytearray, change: Change) -> None:
    if change.kind == "t":
        del content[change.first :]
        content.extend(bytes(change.first - len(content)))
        return
    content.extend(bytes(max(0, change.first - len(content))))
    content[change.first : change.first + len(change.data)] = change.data


def _sectors(change: Change) -> Iterator[Change]:
    """Cut a write where sectors of the disk end."""
    place = 0
    while place < len(change.data):
        at = change.first + place
        length = SECTOR_BYTES - at % SECTOR_BYTES
        yield change._replace(first=at, data=change.data[place : place + length])
        place += length
