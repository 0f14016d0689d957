"""SQLite files from outside: whether one is sound, its pages, and copies while it is in use.

SQLite notices damage to its trees, to types of values, and where an index differs from its table;
not damage to what a row alone says. Tables whose numbers say where messages are have a checksum of
them, which SQLite itself computes whenever it writes a row; one with texts that are long has one
that the writer computes. Of others, an index has the columns, or other rows say the same.

SQLite refuses a tree at its first damaged page; in a `DatabaseFile` each page stands for itself,
with what the write-ahead log has on top. The formats are those of
https://www.sqlite.org/fileformat2.html. Nothing is written, and no lock is taken.
"""

import mmap
import os
import sqlite3
import struct
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from wings_core.metadata.sqlite.writer import translated

PAGE_BYTES_MIN = 512
"""The smallest page of SQLite's files."""

FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file: the second where names or messages have become no text."""

_PRIME = 4_294_967_291
"""The greatest below 2^32. A changed byte changes a number by no multiple of it, nor the sum."""

_WEIGHTS = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Numbers that trade places are noticed too."""


def _checksum(*columns: str) -> str:
    """Return the SQL of a checksum of columns; of those that may be NULL, `column?`."""
    terms = [
        f"{weight} * ifnull({column[:-1]}, -1)" if column.endswith("?") else f"{weight} * {column}"
        for weight, column in zip(_WEIGHTS, columns, strict=False)
    ]
    return f"({' + '.join(terms)}) % {_PRIME}"


_COLUMNS = {
    "pages": (
        "partition_id",
        "end_offset",
        "start_offset",
        "timestamp",
        "folio_id",
        "position",
        "length",
        "format",
        "first_timestamp?",
        "first_row?",
        "slice_bytes?",
    ),
    "partitions": (
        "id",
        "topic_id",
        "log_start_offset",
        "next_offset",
        "bytes",
        "last_timestamp",
        "pages",
        "merged_pages",
        "merged_rows",
        "merged_bytes",
    ),
    "consumer_offsets": ("topic_id", "offset", "committed_at"),
}

_WITH_TEXTS = {
    "producer_results": (
        *("topic_id", "producer_id", "slot", "sequence", "committed", "committed_at"),
    ),
}
"""Tables whose checksum is `row_checksum` of these columns."""

CHECKSUMS = {
    **{table: _checksum(*columns) for table, columns in _COLUMNS.items()},
    # Bytes, as a damaged text is none.
    **{
        table: f"row_checksum({', '.join(f'CAST({column} AS BLOB)' for column in columns)})"
        for table, columns in _WITH_TEXTS.items()
    },
}
"""The SQL of the column `checksum` of each table. Migrations have it: it does not change."""


def row_checksum(*values: int | str) -> int:
    """Return the checksum of a row's values: the CRC-32 of their texts, NUL between them."""
    return crc32("\0".join(map(str, values)).encode("utf-8", "surrogateescape"))


def add_row_checksum(connection: sqlite3.Connection) -> None:
    """Add the SQL function `row_checksum` to a connection; it takes texts as bytes too."""

    def checksum(*values: int | str | bytes) -> int:
        return row_checksum(*(_text(each) if isinstance(each, bytes) else each for each in values))

    connection.create_function("row_checksum", -1, checksum, deterministic=True)


def checksum_of(table: str, row: Mapping[str, Any]) -> int:
    """Return the column `checksum` of a row.

    Args:
        table: One of `CHECKSUMS`.
        row: Its values, by column.
    """
    if table in _WITH_TEXTS:
        return row_checksum(*(row[column] for column in _WITH_TEXTS[table]))
    total = 0
    for weight, column in zip(_WEIGHTS, _COLUMNS[table], strict=False):
        value = row[column.removesuffix("?")]
        total += weight * (-1 if value is None else value)
    return total % _PRIME if total >= 0 else -(-total % _PRIME)


_KEYS = {
    "pages": "partition_id || ', end ' || end_offset",
    "partitions": "id",
    "consumer_offsets": "quote(consumer) || ', partition ' || partition",
    "producer_results": "quote(producer_id) || ', sequence ' || sequence",
}

_DISAGREEING = {
    "the pages of folio {} are not as many as it counts": """
        SELECT folios.name FROM folios LEFT JOIN (
            SELECT folio_id, count(*) AS count FROM (
                SELECT folio_id FROM pages UNION ALL SELECT folio_id FROM staged_pages
            ) GROUP BY folio_id
        ) AS found ON found.folio_id = folios.id
        WHERE folios.pages <> ifnull(found.count, 0) LIMIT ?
    """,
    "the number of topics is below that of topic {}": """
        SELECT last FROM (SELECT max(id) AS last FROM topics)
        WHERE last > (SELECT max(seq) FROM sqlite_sequence WHERE name = 'topics') LIMIT ?
    """,
}
"""Queries for rows that contradict others, by the problem."""

PROBLEMS_MAX = 100
"""Problems of one file that SQLite is asked for."""


def integrity_problems(
    connection: sqlite3.Connection, problems_max: int = PROBLEMS_MAX
) -> Iterator[str]:
    """Yield what SQLite finds wrong in its file: trees, records, and indexes against their tables.

    Blocks for as long as reading the whole file takes.

    Raises:
        One of `FAULTS`: The file is damaged so much that SQLite cannot look at all of it.
    """
    with closing(connection.execute(f"PRAGMA integrity_check({problems_max})")) as cursor:
        for (found,) in cursor:
            if found != "ok":
                yield " ".join(found.split())


def open_to_check(path: Path) -> sqlite3.Connection:
    """Open a database to read it, beside a process that has it open or at rest; writes nothing.

    Damaged text reads as text that no sound one equals.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not path.with_name(f"{path.name}-wal").exists():
        uri += "&immutable=1"  # No process has it open: SQLite need not create what those share.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = _text
    add_row_checksum(connection)
    return connection


def _row_problems(connection: sqlite3.Connection, table: str, checksum: str) -> Iterator[str]:
    columns = {row[1] for row in connection.execute(f"PRAGMA table_xinfo({table})")}
    if "checksum" not in columns:
        return  # Of an earlier version, which the next start brings up to date.
    rows = connection.execute(
        f"SELECT {_KEYS[table]} FROM {table} WHERE checksum IS NOT ({checksum}) LIMIT ?",
        (PROBLEMS_MAX,),
    )
    for (key,) in rows:
        yield f"the row of {table} {key} is not what was written"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def is_empty(path: Path) -> bool:
    """Tell whether there is no file, or one that SQLite takes for new: shorter than any page."""
    return not path.exists() or path.stat().st_size < PAGE_BYTES_MIN


def metadata_problems(path: Path) -> Iterator[str]:
    """Yield what is wrong with a file of metadata, beside a process that has it open or at rest."""
    if is_empty(path):
        yield "it is empty"
        return
    yield from DatabaseFile.log_problems_of(path)
    try:
        with closing(open_to_check(path)) as connection:
            yield from integrity_problems(connection)
            for table, checksum in CHECKSUMS.items():
                yield from _row_problems(connection, table, checksum)
            for message, query in _DISAGREEING.items():
                for (found,) in connection.execute(query, (PROBLEMS_MAX,)):
                    yield message.format(found)
    except FAULTS as error:
        yield str(error)


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


LOCK_SECONDS_MAX = 10.0
"""How long a lock of another connection is waited for."""


@contextmanager
def copying(path: Path, what: str) -> Generator[Callable[[Path], None]]:
    """Fix the state of a file at one moment; yields what copies that into a new file.

    No writer waits for it.

    Args:
        path: The file, which this process may have open.
        what: Names it in errors.

    Raises:
        ResourceExhausted: There is no room for the copy.
        WingsError: SQLite failed.
    """
    with told_of(what), closing(_reader(path)) as reader:
        reader.execute("BEGIN")
        # SQLite fixes what a transaction sees when it first reads.
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        yield partial(_copy, reader)


@contextmanager
def locked(path: Path, what: str) -> Generator[None]:
    """Keep others from writing to a file.

    Raises:
        WingsError: Its writer did not let go of its lock in time.
    """
    with told_of(what), closing(sqlite3.connect(path, LOCK_SECONDS_MAX, 0, None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            writer.execute("ROLLBACK")


@contextmanager
def told_of(what: str) -> Generator[None]:
    """Raise SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, what) from error


@contextmanager
def new_copy(path: Path) -> Generator[sqlite3.Connection]:
    """Make a file that a crash may leave damaged, and that only this user reads."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(path, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous=OFF")
        yield copy


def _reader(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS_MAX, isolation_level=None)


def _copy(reader: sqlite3.Connection, into: Path) -> None:
    """Copy what a reader's transaction sees, page by page."""
    with new_copy(into) as copy:
        reader.backup(copy)
