"""DoGet of a backup: the list of its files, or a part of one."""

from collections.abc import Generator
from contextlib import closing

import pyarrow as pa

from wings_core.contracts.backup import DATA_SCHEMA, FILES_SCHEMA, BackupFiles, BackupRead
from wings_server.served_log import ServedLog


def open_backup(
    log: ServedLog, ticket: BackupFiles | BackupRead
) -> tuple[pa.Schema, Generator[tuple[pa.RecordBatch, bytes]]]:
    """Return the schema of what a ticket reads, and what yields it, without metadata."""
    if isinstance(ticket, BackupFiles):
        return FILES_SCHEMA, _without_metadata(log.backups.files(ticket.backup))
    return DATA_SCHEMA, _without_metadata(log.backups.read(ticket))


def _without_metadata(
    batches: Generator[pa.RecordBatch],
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    with closing(batches):
        for batch in batches:
            yield batch, b""
