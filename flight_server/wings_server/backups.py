"""Backups: their actions, and DoGet of the list of files and of parts of files."""

from collections.abc import Generator
from contextlib import closing

import pyarrow as pa

from wings_core.contracts.tickets import (
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
    """Begin a backup of the current state, to be read over Flight; returns its id."""
    del body
    return log.backups.begin()


@BACKUP_ACTIONS.add("backup-end", BackupEnd)
def end_backup(log: ServedLog, body: BackupEnd) -> Json:
    """End a backup; returns whether it was still in progress."""
    return {"ended": log.backups.end(body.backup)}


def open_backup(
    log: ServedLog, ticket: BackupFiles | BackupRead
) -> tuple[pa.Schema, Generator[tuple[pa.RecordBatch, bytes]]]:
    """Return the schema of a ticket's data, and its batches, without metadata."""
    if isinstance(ticket, BackupFiles):
        return FILES_SCHEMA, _without_metadata(log.backups.files(ticket.backup))
    return DATA_SCHEMA, _without_metadata(log.backups.read(ticket))


def _without_metadata(
    batches: Generator[pa.RecordBatch],
) -> Generator[tuple[pa.RecordBatch, bytes]]:
    with closing(batches):
        for batch in batches:
            yield batch, b""
