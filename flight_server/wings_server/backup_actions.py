"""The actions around a backup; what it is of is read by DoGet (`flight/backup.py`)."""

from wings_core.contracts.backup import BackupBegin, BackupEnd
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
