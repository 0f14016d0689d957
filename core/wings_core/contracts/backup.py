"""Backups on the wire: actions to begin and end them, and tickets to read their files."""

from typing import Annotated, Literal

import pyarrow as pa
from pydantic import Field

from wings_core.contracts.actions import ActionBody
from wings_core.contracts.messages import INT64_MAX, Ticket

FILES_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("bytes", pa.int64()),
    ]
)
"""Schema of the file list: the first `bytes` of a file, which never change, are in the backup; null
for the whole file."""

DATA_SCHEMA = pa.schema([pa.field("data", pa.binary(), nullable=False)])
"""Schema of file contents: consecutive bytes."""

METADATA_FILE = "metadata.sqlite"
HOLDS_FILE = "holds.sqlite"

BackupId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class BackupBegin(ActionBody):
    """The body of `backup-begin`: an empty object."""


class BackupEnd(ActionBody):
    """The body of `backup-end`."""

    backup: BackupId


class BackupTicket(Ticket):
    """Keys common to both tickets."""

    backup: BackupId
    """Id returned by `backup-begin`."""


class BackupFiles(BackupTicket):
    """List the files with messages that a backup needs, in batches of `FILES_SCHEMA`."""

    kind: Literal["backup-files"] = "backup-files"


class BackupRead(BackupTicket):
    """Read a part of a file, in batches of `DATA_SCHEMA`."""

    kind: Literal["backup-read"] = "backup-read"
    file: str
    """Name of a listed file, or of a database."""
    start: Annotated[int, Field(ge=0, le=INT64_MAX)] = 0
    """First byte, 0-based."""
    end: Annotated[int, Field(ge=0, le=INT64_MAX)]
    """End in bytes, exclusive; cut at the end of the file."""
