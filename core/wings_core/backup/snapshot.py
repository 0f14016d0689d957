"""A snapshot: the databases of a log, copied as they are at one moment.

    lock writes of holds ─▶ holds: begin to read ─▶ metadata: begin to read ─▶ unlock ─▶ copy both

The two have no transaction in common. But what is acknowledged to a share group is written to the
holds alone, so while their one writer waits, the moment at which metadata is read is one of the
holds as well. It waits for a few statements; the copying comes after, from transactions that read,
which keep no writer.

So a message whose acknowledgement was answered before the moment is finished in the snapshot, and
one whose acknowledgement came after it is not; a dead letter is in it with the rejected message.
"""

import sqlite3
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from wings_core.contracts.backup import HOLDS_FILE, METADATA_FILE
from wings_core.errors import ResourceExhausted
from wings_core.metadata.interfaces import Metadata
from wings_core.model import INLINE_SUFFIX
from wings_core.share.replica.copies import HoldsCopies
from wings_core.times import now_us

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

    @property
    def store_id(self) -> str:
        """What tells the metadata from any other."""
        with closing(open_copy(self.databases[METADATA_FILE])) as connection:
            return connection.execute("SELECT id FROM identity").fetchone()[0]

    def folios(self) -> Generator[tuple[str, int]]:
        """Yield the folios with pages that are not in the databases, and where the last page ends.

        By name; in bytes from the folio's beginning.
        """
        with closing(open_copy(self.databases[METADATA_FILE])) as connection:
            yield from connection.execute(_FILES)


def take_snapshot(metadata: Metadata, holds: HoldsCopies, into: Path) -> Snapshot:
    """Copy the databases of a log, whatever they are in; blocks while it copies.

    Nothing is kept from being written but acknowledgements, for the time of a few statements.

    Args:
        metadata: The log's.
        holds: What its share groups have finished.
        into: A directory for the copies.

    Raises:
        ResourceExhausted: There is no room for them.
        WingsError: A database cannot be read, or the writer of the holds did not let go of its
            lock.
    """
    with ExitStack() as opened:
        with holds.locked():
            copies = {
                HOLDS_FILE: opened.enter_context(holds.copying()),
                METADATA_FILE: opened.enter_context(metadata.copying()),
            }
            at = now_us()
        databases: dict[str, Path] = {}
        try:
            for name in (METADATA_FILE, HOLDS_FILE):
                copy = copies[name]
                if copy is not None:
                    databases[name] = into / name
                    copy(databases[name])
        except OSError as error:
            raise ResourceExhausted(
                f"there is no room for a copy of the databases: {error.strerror or error}"
            ) from error
    return Snapshot(at, databases)


def open_copy(path: Path) -> sqlite3.Connection:
    """Open a copy that is not written to, to read it; leaves no trace beside it."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
