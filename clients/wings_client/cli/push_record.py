"""The record of an unfinished push, from which `wings push --resume` continues.

Each pair of a topic and a file of rows has a record in `$XDG_STATE_HOME/wings/push`. It names the
durable, not yet visible stages, and the writer under which they are published once.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from wings_client import Topic
from wings_client.cli.state import state_directory

RECORD_DAYS_MAX = 30
"""Age in days at which records are deleted."""

_NO_PLACE = (OSError, RuntimeError)
"""Errors of a missing or unwritable directory for records, or a missing home directory."""


class PushRecord(BaseModel):
    """Progress of the push of one file to one topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    """UUID of the topic, which distinguishes it from a later one of the same name."""
    file: str
    size: int
    mtime_ns: int
    options: tuple[str | None, ...] = ()
    """Options that affect which rows are read."""
    inferred: tuple[str, ...] = ()
    """Columns with types inferred from the file's first rows."""
    writer: str
    batch: int
    """The writer's number for this push: its start, in microseconds since the epoch."""
    stages: tuple[str, ...] = ()
    """Ids of complete stages, in order of their rows."""
    rows: int = 0
    """Rows in these stages, the first ones of the file."""
    is_published: bool = False

    @classmethod
    def begin(
        cls,
        topic: Topic,
        path: Path,
        file: str,
        options: Sequence[str | None],
        inferred: Iterable[str],
    ) -> Self:
        """Return the record of a new push.

        Args:
            topic: The topic.
            path: Path of the file, or of its copy.
            file: Absolute path or URI of the file.
            options: Options that affect which rows are read.
            inferred: Columns with inferred types.
        """
        status = path.stat()
        # One writer for each file of a machine, as servers remember each writer's last batch.
        return cls(
            topic=topic.uuid,
            # Invalid UTF-8 in a name is kept.
            file=file.encode("utf-8", "backslashreplace").decode(),
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            options=tuple(options),
            inferred=tuple(sorted(inferred)),
            writer=f"push:{_digest(platform.node(), topic.uuid, file)}",
            batch=time.time_ns() // 1_000,
        )

    @property
    def prefix(self) -> str:
        """Common prefix of the ids of its stages."""
        return f"{self.writer}.{self.batch}."

    def is_of_same(self, other: "PushRecord") -> bool:
        """Return whether another record is for the same unchanged file and options."""
        mine, others = (
            (each.topic, each.file, each.size, each.mtime_ns, each.options)
            for each in (self, other)
        )
        return mine == others

    def with_stage(self, stage: str, rows: int) -> Self:
        """Return the record with a stage added."""
        update = {"stages": (*self.stages, stage), "rows": self.rows + rows}
        return self.model_copy(update=update)

    def published(self) -> Self:
        """Return the record of the finished push."""
        return self.model_copy(update={"is_published": True, "stages": ()})

    def save(self) -> bool:
        """Write the record; returns whether that succeeded, which a push does not need."""
        try:
            place = _place(self.topic, self.file)
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            written = place.with_suffix(f".{os.getpid()}.tmp")
            written.write_text(self.model_dump_json())
            written.replace(place)
        except _NO_PLACE:
            return False
        return True

    def delete(self) -> None:
        """Delete the record."""
        with suppress(*_NO_PLACE):
            _place(self.topic, self.file).unlink(missing_ok=True)


def found_record(begun: PushRecord) -> PushRecord | None:
    """Return the stored record of the same topic and file; None if there is no readable one."""
    try:
        return PushRecord.model_validate(json.loads(_place(begun.topic, begun.file).read_text()))
    except (*_NO_PLACE, ValueError, ValidationError):
        return None


def delete_old_records() -> None:
    """Delete records older than `RECORD_DAYS_MAX`."""
    oldest = time.time() - RECORD_DAYS_MAX * 86_400
    with suppress(*_NO_PLACE):
        for path in _directory().iterdir():
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def _directory() -> Path:
    return state_directory() / "push"


def _place(topic: str, file: str) -> Path:
    return _directory() / f"{_digest(topic, file)}.json"


def _digest(*texts: str) -> str:
    data = "\0".join(texts).encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).hexdigest()[:32]
