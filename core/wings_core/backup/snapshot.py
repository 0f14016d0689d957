"""A snapshot: the databases of a data directory, copied as they are at one moment.

    lock writes of holds ─▶ metadata: begin to read ─▶ holds: begin to read ─▶ unlock ─▶ copy both

Two SQLite files have no transaction in common. But what is acknowledged to a share group is written
to the holds alone, so while that file's one writer waits, the moment at which metadata is read is
one of the holds as well. It waits for two statements; the copying comes after, from transactions
that read, which keep no writer.

So a message whose acknowledgement was answered before the moment is finished in the snapshot, and
one whose acknowledgement came after it is not; a dead letter is in it with the rejected message.
"""

import os
import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from wings_core.contracts.backup import HOLDS_FILE, METADATA_FILE
from wings_core.metadata.sqlite.faults import translated
from wings_core.metadata.sqlite.integrity import is_empty
from wings_core.model import INLINE_SUFFIX
from wings_core.times import now_us

LOCK_SECONDS_MAX = 10.0
"""How long a lock of another writer is waited for."""

_FILES = f"""
SELECT folios.name, max(used.end_position) FROM (
    SELECT folio_id, position + length AS end_position FROM pages
    UNION ALL
    SELECT folio_id, position + length FROM staged_pages
) AS used JOIN folios ON folios.id = used.folio_id
WHERE folios.name NOT LIKE '%{INLINE_SUFFIX}' GROUP BY folios.id ORDER BY folios.name
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copies of the databases, and the moment that they are of."""

    at: int
    """Microseconds since the epoch, by the server's clock."""
    databases: dict[str, Path]
    """By name; without that of holds where there are none."""

    def folios(self) -> Generator[tuple[str, int]]:
        """Yield the folios with pages that are not in the databases, and where the last page ends.

        By name; in bytes from the folio's beginning.
        """
        with closing(open_copy(self.databases[METADATA_FILE])) as connection:
            yield from connection.execute(_FILES)


def take_snapshot(metadata: Path, holds: Path, into: Path) -> Snapshot:
    """Copy the databases of a directory that this process has open; blocks while it copies.

    Nothing is kept from being written but acknowledgements, for the time of two statements.

    Args:
        metadata: The file of the metadata.
        holds: That of the holds, which need not be there.
        into: A directory for the copies.

    Raises:
        ResourceExhausted: There is no room for them.
        WingsError: SQLite failed, or the writer of the holds did not let go of its lock.
    """
    sources = {METADATA_FILE: metadata}
    if not is_empty(holds):
        sources[HOLDS_FILE] = holds
    try:
        with ExitStack() as opened:
            readers = {
                name: opened.enter_context(closing(_reader(path))) for name, path in sources.items()
            }
            with _locked(holds) if HOLDS_FILE in sources else nullcontext():
                for reader in readers.values():
                    reader.execute("BEGIN")
                    # SQLite fixes what a transaction sees when it first reads.
                    reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                at = now_us()
            for name, reader in readers.items():
                _copy(reader, into / name)
    except sqlite3.Error as error:
        raise translated(error, "the databases to be backed up") from error
    return Snapshot(at, {name: into / name for name in sources})


def open_copy(path: Path) -> sqlite3.Connection:
    """Open a copy that is not written to, to read it; leaves no trace beside it."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _reader(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS_MAX, isolation_level=None)


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Keep others from writing to a database."""
    writer = sqlite3.connect(path, timeout=LOCK_SECONDS_MAX, isolation_level=None)
    with closing(writer):
        writer.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            writer.execute("ROLLBACK")


def _copy(reader: sqlite3.Connection, into: Path) -> None:
    """Copy what a reader's transaction sees, page by page."""
    os.close(os.open(into, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(into, isolation_level=None)) as copy:
        copy.execute("PRAGMA synchronous=OFF")  # It is thrown away after a crash.
        reader.backup(copy)
