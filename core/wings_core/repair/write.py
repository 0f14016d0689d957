"""Writes the rebuilt metadata of a new directory."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from wings_core.metadata.maintenance import PageCounts
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.model import INLINE_SUFFIX
from wings_core.repair.catalog import KeptTopics, Rest, as_int
from wings_core.repair.log import Repaired
from wings_core.repair.salvage import Row, Shape


def write_metadata(
    path: Path,
    shapes: dict[str, Shape],
    catalog: KeptTopics,
    partitions: Sequence[Repaired],
    folios: dict[int, str],
    inline: dict[str, bytes],
    rest: Rest,
    identity: str | None,
) -> dict[int, str]:
    """Create a metadata file; returns the names of files with pages, by id.

    Args:
        path: The file, which must not exist.
        shapes: The tables.
        catalog: Namespaces and topics.
        partitions: Partitions with their pages.
        folios: Names of files by id.
        inline: Bytes of inline folios, by name.
        rest: Rows of the remaining tables.
        identity: Id of the metadata; None generates a new one.
    """
    SqliteMetadata(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        writer = _Writer(connection, shapes, dict(folios))
        writer.replace("namespaces", catalog.namespaces.values())
        if identity is not None:
            writer.replace("identity", [{"id": identity}])
        writer.insert("topics", catalog.rows.values())
        for partition in partitions:
            writer.partition(partition)
        for stage, pages in rest.stages:
            writer.insert("stages", [stage])
            writer.insert("staged_pages", pages)
            writer.pages.update(as_int(page["folio_id"]) for page in pages)
        for table, rows in rest.rows.items():
            writer.insert(table, rows)
        if rest.had_tokens:
            connection.execute(
                "INSERT INTO token_changes (id, changes) VALUES (0, 1) "
                "ON CONFLICT (id) DO UPDATE SET changes = changes + 1"
            )
        used = writer.write_folios(inline)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return used


class _Writer:
    def __init__(
        self, connection: sqlite3.Connection, shapes: dict[str, Shape], folios: dict[int, str]
    ) -> None:
        self._connection = connection
        self._shapes = shapes
        self._folios = folios
        self._ids = {name: folio_id for folio_id, name in folios.items()}
        self.pages: Counter[int] = Counter()
        """Number of pages in each file, by id."""

    def replace(self, table: str, rows: Iterable[Row]) -> None:
        self._connection.execute(f"DELETE FROM {table}")
        self.insert(table, rows)

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        columns = self._shapes[table].stored
        self._connection.executemany(
            f"INSERT INTO {table} ({', '.join(columns)}) "
            f"VALUES ({', '.join('?' for _ in columns)})",
            ([row[column] for column in columns] for row in rows),
        )

    def partition(self, partition: Repaired) -> None:
        counts = PageCounts.of_locations(partition.pages)
        self.insert(
            "partitions",
            [
                {
                    "id": partition.partition_id,
                    "topic_id": partition.topic_id,
                    "value": partition.value,
                    "log_start_offset": partition.log_start_offset,
                    "next_offset": partition.next_offset,
                    "bytes": counts.bytes,
                    "last_timestamp": partition.last_timestamp,
                    "pages": counts.pages,
                    "merged_pages": counts.merged_pages,
                    "merged_rows": counts.merged_rows,
                    "merged_bytes": counts.merged_bytes,
                }
            ],
        )
        for page in partition.pages:
            self.pages[self._id_of(page.address.folio)] += 1
        self.insert(
            "pages",
            (
                {
                    "partition_id": partition.partition_id,
                    "end_offset": page.end_offset,
                    "start_offset": page.start_offset,
                    "timestamp": page.timestamp,
                    "folio_id": self._id_of(page.address.folio),
                    "position": page.address.position,
                    "length": page.address.length,
                    "first_timestamp": page.first_timestamp,
                    "format": int(page.format),
                    "first_row": page.first_row,
                    "slice_bytes": page.slice_bytes,
                    "schema_version": page.schema_version,
                }
                for page in partition.pages
            ),
        )

    def write_folios(self, inline: dict[str, bytes]) -> dict[int, str]:
        used = {folio_id: self._folios[folio_id] for folio_id in self.pages}
        self.insert(
            "folios",
            (
                {"id": each, "name": name, "pages": self.pages[each], "retired_at": None}
                for each, name in used.items()
            ),
        )
        self.insert(
            "inline_folios",
            (
                {"folio_id": each, "data": inline[name]}
                for each, name in used.items()
                if name.endswith(INLINE_SUFFIX) and name in inline
            ),
        )
        return used

    def _id_of(self, folio: str) -> int:
        folio_id = self._ids.get(folio)
        if folio_id is None:
            folio_id = self._ids[folio] = max(self._folios, default=0) + 1
            self._folios[folio_id] = folio
        return folio_id
