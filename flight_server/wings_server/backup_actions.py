"""The actions around a backup; what it is of is read by DoGet (`flight/backup.py`)."""

from wings_core.backup.backups import Backups
from wings_core.contracts.backup import BackupBegin, BackupEnd
from wings_core.errors import InvalidArgument
from wings_core.log import Log
from wings_server.action import Actions, Json

BACKUP_ACTIONS = Actions()


@BACKUP_ACTIONS.add("backup-begin", BackupBegin)
def begin_backup(log: Log, body: BackupBegin) -> Json:
    """Begin a backup: the databases as they are now, to be read over Flight; returns its id."""
    del body
    return backups_of(log).begin()


@BACKUP_ACTIONS.add("backup-end", BackupEnd)
def end_backup(log: Log, body: BackupEnd) -> Json:
    """End a backup that was read, or is not read any more; tells whether it was still there."""
    return {"ended": backups_of(log).end(body.backup)}


def backups_of(log: Log) -> Backups:
    """Return the backups of a log.

    Raises:
        InvalidArgument: This process has not all that a backup is of.
    """
    if log.backups is None:
        raise InvalidArgument(
            "backups are taken of a server with its own data directory, its metadata in it; this "
            "is a node, or has its metadata in PostgreSQL: use PostgreSQL's own backup (pg_dump, "
            "or base backups with WAL) and the object store's versions"
        )
    return log.backups
