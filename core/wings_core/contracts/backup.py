"""Backups on the wire: two actions around them, and two tickets that read what they are of."""

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
"""A file that a backup needs. `bytes` from its beginning, which never change; null: all of it,
however long it is."""

DATA_SCHEMA = pa.schema([pa.field("data", pa.binary(), nullable=False)])
"""Bytes of a file, one after another."""

METADATA_FILE = "metadata.sqlite"
HOLDS_FILE = "holds.sqlite"

BackupId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class BackupBegin(ActionBody):
    """The body of `backup-begin`: an empty object."""


class BackupEnd(ActionBody):
    """The body of `backup-end`."""

    backup: BackupId


class BackupTicket(Ticket):
    """The keys of both tickets."""

    backup: BackupId
    """The id that `backup-begin` returned."""


class BackupFiles(BackupTicket):
    """List the files with messages that a backup needs, in batches of `FILES_SCHEMA`."""

    kind: Literal["backup-files"] = "backup-files"


class BackupRead(BackupTicket):
    """Read a part of a file, in batches of `DATA_SCHEMA`."""

    kind: Literal["backup-read"] = "backup-read"
    file: str
    """One of those listed, or of the databases."""
    start: Annotated[int, Field(ge=0, le=INT64_MAX)] = 0
    """In bytes."""
    end: Annotated[int, Field(ge=0, le=INT64_MAX)]
    """Exclusive; at most to the end of the file."""
