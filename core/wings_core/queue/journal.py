"""Journal: the claims of a pipeline, in its checkpoint's directory.

    PIPELINE            the pipeline's token: names it as an owner of shards
    LOCK                held by the process that runs the pipeline
    claims/N.json       claim N: durable before it is acted on, and never changed
    claims/N.read       its files have been read; it is about to be published: their versions
    claims/N.done       its outcome: published, and its messages acknowledged

A pipeline plans only from the journal: its processes share no memory, and after a restart it
finishes open claims.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from wings_core.errors import Internal, Unavailable
from wings_core.queue.claims import Claim, Outcome
from wings_core.storage.files import sync_directory

CLAIMS_KEPT_MAX = 1_000
"""Finished claims that are kept; older ones are deleted."""

M = TypeVar("M", bound=BaseModel)


class Journal:
    """The journal in one directory, which is created if missing.

    Args:
        directory: Directory on a disk that outlives the pipeline's processes, reachable by all of
            them.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._claims = directory / "claims"
        self._claims.mkdir(parents=True, exist_ok=True)
        self._lock: IO[bytes] | None = None

    @property
    def token(self) -> str:
        """The pipeline's identity as an owner of shards; generated at its first start."""
        path = self.directory / "PIPELINE"
        if not path.exists():
            _create(path, uuid4().hex.encode())
        return path.read_text(encoding="utf-8").strip()

    def lock(self) -> None:
        """Lock the pipeline against other processes of this machine, until `unlock`.

        Raises:
            Unavailable: Another process holds the lock.
        """
        lock = (self.directory / "LOCK").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise Unavailable(
                f"a pipeline runs already with the checkpoint {self.directory}"
            ) from None
        self._lock = lock
        for each in (self._claims, self.directory):  # A run before this one may have failed to.
            sync_directory(each)

    def unlock(self) -> None:
        """Release the lock, if it is held."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def add(self, claim: Claim) -> Claim:
        """Write a claim durably; returns the stored claim of its number, which may be older."""
        _create(self._path(claim.number, "json"), claim.model_dump_json().encode())
        found = self.claim(claim.number)
        assert found is not None
        return found

    def claim(self, number: int) -> Claim | None:
        """Return a claim; None if it was never written, or is deleted.

        Raises:
            Internal: The claim cannot be read.
        """
        return _load(self._path(number, "json"), Claim)

    def outcome(self, number: int) -> Outcome | None:
        """Return the outcome of a claim; None while it is not done."""
        return _load(self._path(number, "done"), Outcome)

    def mark_read(self, number: int, versions: Mapping[str, str] | None = None) -> None:
        """Record that the files of a claim have been read.

        Args:
            number: Number of the claim.
            versions: Versions read completely, by shard, recorded durably; None for those recorded
                before.
        """
        path = self._path(number, "read")
        if versions is None:
            path.touch()
        else:
            _replace(path, json.dumps(versions).encode())

    def versions_read(self, number: int) -> dict[str, str]:
        """Return the versions that were recorded with `mark_read`, by shard."""
        try:
            text = self._path(number, "read").read_bytes()
        except FileNotFoundError:
            return {}
        return json.loads(text) if text else {}

    def is_read(self, number: int) -> bool:
        """Return whether the files of a claim have been read."""
        return self._path(number, "read").exists() or self.is_done(number)

    def mark_done(self, outcome: Outcome) -> None:
        """Record the outcome of a claim durably, and delete the oldest claim beyond those kept."""
        _create(self._path(outcome.number, "done"), outcome.model_dump_json().encode())
        self._path(outcome.number, "read").unlink(missing_ok=True)
        old = outcome.number - CLAIMS_KEPT_MAX
        for ending in ("json", "read", "done"):
            with suppress(OSError):
                self._path(old, ending).unlink(missing_ok=True)

    def is_done(self, number: int) -> bool:
        """Return whether a claim was published and acknowledged."""
        return self._path(number, "done").exists()

    @property
    def last(self) -> int:
        """The number of the last claim; 0 before the first."""
        numbers = [int(path.stem) for path in self._claims.glob("*.json") if path.stem.isdigit()]
        return max(numbers, default=0)

    @property
    def last_done(self) -> int:
        """The last finished claim, 0 before the first; at most one claim after it is open."""
        last = self.last
        return last if last == 0 or self.is_done(last) else last - 1

    def outcomes(self, outcomes_max: int) -> list[Outcome]:
        """Return the outcomes of the last claims, the oldest first."""
        last = self.last
        found = (self.outcome(number) for number in range(max(1, last - outcomes_max), last + 1))
        return [outcome for outcome in found if outcome is not None]

    def open_claims(self) -> list[Claim]:
        """Return the claims that are not done, in order."""
        last = self.last
        found = (
            self.claim(number)
            for number in range(max(1, last - CLAIMS_KEPT_MAX), last + 1)
            if not self.is_done(number)
        )
        return [claim for claim in found if claim is not None]

    def _path(self, number: int, ending: str) -> Path:
        return self._claims / f"{number}.{ending}"


def _create(path: Path, data: bytes) -> None:
    """Write a file durably and atomically; an existing one is left as it is."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def _replace(path: Path, data: bytes) -> None:
    """Write a file durably and atomically, in place of an existing one."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def _load(path: Path, model: type[M]) -> M | None:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Internal(f"the journal's {path} cannot be read: {str(error)[:200]}") from None
