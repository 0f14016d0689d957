"""The record of a push that may be cut off: what `wings push --resume` goes on from.

One file for each pair of a topic and a file of rows, in `$XDG_STATE_HOME/wings/push`. It names the
stages that are durable and not visible yet, and the writer under which they are published once.
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
"""Records that were not written for so long are deleted."""

_NO_PLACE = (OSError, RuntimeError)
"""There is no directory for records that can be written, or no home directory at all."""


class PushRecord(BaseModel):
    """How far the push of one file into one topic is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    """Its UUID: a topic that is deleted and created again is another one."""
    file: str
    size: int
    mtime_ns: int
    options: tuple[str | None, ...] = ()
    """Those that change which rows are read."""
    inferred: tuple[str, ...] = ()
    """Columns whose types were inferred from the file's first rows."""
    writer: str
    batch: int
    """The writer's number for this push: when it began, in microseconds since the epoch."""
    stages: tuple[str, ...] = ()
    """Ids of complete stages, in order of their rows."""
    rows: int = 0
    """In these stages: the first ones of the file."""
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
        """Return the record of a push that begins.

        Args:
            topic: The topic.
            path: Of the file, or of its copy.
            file: What the file is known by: its absolute path or URI.
            options: Those that change which rows are read.
            inferred: Columns whose types were inferred.
        """
        status = path.stat()
        # One writer for each file of a machine, as servers keep the last batch of each for long.
        return cls(
            topic=topic.uuid,
            # A name that is no UTF-8 is kept, too.
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
        """The common prefix of the ids of its stages."""
        return f"{self.writer}.{self.batch}."

    def is_of_same(self, other: "PushRecord") -> bool:
        """Tell whether another record is of the same file, unchanged, read in the same way."""
        mine, others = (
            (each.topic, each.file, each.size, each.mtime_ns, each.options)
            for each in (self, other)
        )
        return mine == others

    def with_stage(self, stage: str, rows: int) -> Self:
        """Return the record with one more stage."""
        update = {"stages": (*self.stages, stage), "rows": self.rows + rows}
        return self.model_copy(update=update)

    def published(self) -> Self:
        """Return the record of a push that is done."""
        return self.model_copy(update={"is_published": True, "stages": ()})

    def save(self) -> bool:
        """Write the record; returns whether that worked: a push goes on without."""
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
    """Return the stored record of the same topic and file; None if there is none to read."""
    try:
        return PushRecord.model_validate(json.loads(_place(begun.topic, begun.file).read_text()))
    except (*_NO_PLACE, ValueError, ValidationError):
        return None


def delete_old_records() -> None:
    """Delete records of long ago."""
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
