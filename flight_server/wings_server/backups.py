"""Backups: the actions around one, and DoGet of its list of files, or of a part of one."""

from collections.abc import Generator
from contextlib import closing

import pyarrow as pa

from wings_core.contracts.backup import (
    DATA_SCHEMA,
    FILES_SCHEMA,
    BackupBegin,
    BackupEnd,
    BackupFiles,
    BackupRead,
)
from wings_server.action import Actions, Json
from wings_server.served_log import ServedLog

BACKUP_ACTIONS = Actions()


@BACKUP_ACTIONS.add("backup-begin", BackupBegin)
def begin_backup(log: ServedLog, body: BackupBegin) -> Json:
    """Begin a backup: the databases as they are now, to be read over Flight; returns its id."""
    del body
    return log.backups.begin()


@BACKUP_ACTIONS.add("backup-end", BackupEnd)
def end_backup(log: ServedLog, body: BackupEnd) -> Json:
    """End a backup that was read, or is not read any more; tells whether it was still there."""
    return {"ended": log.backups.end(body.backup)}


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
