"""The files of tables in a database; each method is one transaction."""

from collections.abc import Callable, Mapping, Sequence

from wings_core.metadata.maintenance import MaintenanceLease, TableSegment, TableStates
from wings_core.metadata.store.database import Connection, DatabasePart
from wings_core.metadata.store.maintenance import is_held
from wings_core.partitions import Partition


class DatabaseTables(DatabasePart, TableStates):
    """See `TableStates`."""

    def tables(self) -> Mapping[str, str]:
        """See `TableStates.tables`."""
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT topic_uuid, identifier FROM topic_tables"
            ).fetchall()
        )
        return {str(uuid): str(identifier) for uuid, identifier in rows}

    def begin(self, topic_uuid: str, identifier: str) -> int:
        """See `TableStates.begin`."""

        def work(connection: Connection) -> int:
            row = connection.execute(
                "INSERT INTO topic_tables (topic_uuid, identifier, committed) VALUES (%s, %s, 0) "
                "ON CONFLICT (topic_uuid) DO UPDATE SET identifier = excluded.identifier "
                "RETURNING committed",
                (topic_uuid, identifier),
            ).fetchone()
            assert row is not None, "it was inserted or updated"
            return int(row[0])

        return self._database.write(work)

    def segments(self, topic_uuid: str) -> list[TableSegment]:
        """See `TableStates.segments`."""
        rows = self._database.read(
            lambda connection: connection.execute(
                "SELECT folio, partition, end_offset, rows, added, removed FROM table_segments "
                "WHERE topic_uuid = %s ORDER BY folio",
                (topic_uuid,),
            ).fetchall()
        )
        return [
            TableSegment(folio, Partition(partition), end, count, added, removed)
            for folio, partition, end, count, added, removed in rows
        ]

    def plan(
        self,
        topic_uuid: str,
        number: int,
        add: Sequence[TableSegment],
        remove: Sequence[str],
        lease: MaintenanceLease,
    ) -> bool:
        """See `TableStates.plan`."""

        def work(connection: Connection) -> bool:
            # In the order of `Lock`. Locked, so that the expiry of pages finds what is planned.
            for segment in sorted(add, key=lambda segment: segment.folio):
                live = connection.execute(
                    "SELECT 1 FROM folios WHERE name = %s AND retired_at IS NULL FOR SHARE",
                    (segment.folio,),
                ).fetchone()
                if live is None:
                    raise _UndoneError
                _insert(connection, topic_uuid, segment)
            for folio in remove:
                connection.execute(
                    "UPDATE table_segments SET removed = %s WHERE topic_uuid = %s AND folio = %s",
                    (number, topic_uuid, folio),
                )
            self._check(connection, lease)
            return True

        return self._undone(work)

    def confirm(self, topic_uuid: str, number: int) -> None:
        """See `TableStates.confirm`."""

        def work(connection: Connection) -> None:
            connection.execute(
                "DELETE FROM table_segments WHERE topic_uuid = %s AND removed <= %s",
                (topic_uuid, number),
            )
            _committed(connection, topic_uuid, number)

        self._database.write(work)

    def adopt(
        self,
        topic_uuid: str,
        number: int,
        segments: Sequence[TableSegment],
        lease: MaintenanceLease,
    ) -> bool:
        """See `TableStates.adopt`."""

        def work(connection: Connection) -> bool:
            connection.execute("DELETE FROM table_segments WHERE topic_uuid = %s", (topic_uuid,))
            for segment in segments:
                _insert(connection, topic_uuid, segment)
            _committed(connection, topic_uuid, number)
            self._check(connection, lease)
            return True

        return self._undone(work)

    def forget(self, topic_uuid: str) -> None:
        """See `TableStates.forget`."""

        def work(connection: Connection) -> None:
            connection.execute("DELETE FROM table_segments WHERE topic_uuid = %s", (topic_uuid,))
            connection.execute("DELETE FROM topic_tables WHERE topic_uuid = %s", (topic_uuid,))

        self._database.write(work)

    def _check(self, connection: Connection, lease: MaintenanceLease) -> None:
        if not is_held(connection, lease, self._database.lease_now(connection)):
            raise _UndoneError

    def _undone(self, work: Callable[[Connection], bool]) -> bool:
        try:
            return self._database.write(work)
        except _UndoneError:
            return False


class _UndoneError(Exception):
    """Undoes the transaction."""


def _committed(connection: Connection, topic_uuid: str, number: int) -> None:
    connection.execute(
        "UPDATE topic_tables SET committed = %s WHERE topic_uuid = %s", (number, topic_uuid)
    )


def _insert(connection: Connection, topic_uuid: str, segment: TableSegment) -> None:
    connection.execute(
        "INSERT INTO table_segments (topic_uuid, folio, partition, end_offset, rows, added, "
        "removed) VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (
            topic_uuid,
            segment.folio,
            segment.partition,
            segment.end_offset,
            segment.rows,
            segment.added,
            segment.removed,
        ),
    )
