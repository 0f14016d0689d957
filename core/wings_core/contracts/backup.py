"""Backups on the wire: two actions around them, and two tickets that read what they are of."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field

from wings_core.contracts.actions import ActionBody
from wings_core.contracts.messages import INT64_MAX, Message, dump, load_object
from wings_core.errors import InvalidTicket

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


class BackupTicket(Message):
    """The keys of both tickets."""

    backup: BackupId
    """As `backup-begin` named it."""

    def to_bytes(self) -> bytes:
        """Return the ticket, from which `parse_backup_ticket` makes an equal one."""
        found = self.model_dump(mode="json", exclude_defaults=True)
        return dump({"kind": type(self).model_fields["kind"].default, **found})


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


_KINDS: Mapping[str, type[BackupFiles | BackupRead]] = {
    "backup-files": BackupFiles,
    "backup-read": BackupRead,
}


def parse_backup_ticket(raw: bytes) -> BackupFiles | BackupRead | None:
    """Parse a ticket of a backup; None of any other.

    Args:
        raw: JSON in UTF-8.

    Raises:
        InvalidTicket: The message names the key and the problem.
    """
    if b'"backup-' not in raw:
        return None  # So that other tickets are parsed once.
    found: dict[str, Any] = load_object(raw, InvalidTicket, "ticket")
    kind = found.get("kind")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    return None if model is None else model.parse_object(found, raw, InvalidTicket, "ticket")
