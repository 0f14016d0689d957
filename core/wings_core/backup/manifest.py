"""Manifests: what one backup is made of, as JSON with a checksum of its own."""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wings_core.contracts.messages import INT64_MAX
from wings_core.errors import InvalidArgument, StorageCorrupt

MANIFEST_VERSION = 1
"""The version that this code writes, and the newest that it reads."""

Bytes = Annotated[int, Field(ge=0, le=INT64_MAX)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Part(_Model):
    """Bytes `[start, end)` of a file, and the object that holds them."""

    start: Bytes
    end: Bytes
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    object: str

    @property
    def size(self) -> int:
        """The length of the part in bytes."""
        return self.end - self.start


class StoredFile(_Model):
    """A file in a backup: its parts follow one another from its first byte."""

    name: str
    parts: Annotated[tuple[Part, ...], Field(strict=False)]

    @property
    def size(self) -> int:
        """How long it is, in bytes."""
        return self.parts[-1].end if self.parts else 0


class Manifest(_Model):
    """One backup."""

    version: Literal[1] = MANIFEST_VERSION
    backup: str
    """Its name: when it was begun, in UTC, and a random end."""
    wings: str
    """The version of Wings that took it."""
    log: str
    """The id of the metadata."""
    at_us: int
    """The moment that it is of, in microseconds since the epoch, by the server's clock."""
    finished_at_us: int
    """By the client's."""
    format: int
    """Of the data directory."""
    metadata_version: int
    copied_bytes: Bytes
    """That this backup added; the others were there from earlier ones."""
    databases: Annotated[tuple[StoredFile, ...], Field(strict=False)]
    folios: Annotated[tuple[StoredFile, ...], Field(strict=False)]
    """Files with messages."""

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """The files of the backup: databases, then those with messages."""
        return (*self.databases, *self.folios)

    @property
    def size(self) -> int:
        """Of all files, in bytes."""
        return sum(file.size for file in self.files)

    def to_json(self) -> bytes:
        """Return the text of the object that keeps it."""
        found = self.model_dump(mode="json")
        text = json.dumps({"manifest": found, "sha256": _checksum(found)}, indent=1)
        return f"{text}\n".encode()

    @classmethod
    def of_json(cls, raw: bytes, name: str) -> "Manifest":
        """Return the manifest of an object's bytes.

        Args:
            raw: The bytes.
            name: Of the object, for errors.

        Raises:
            StorageCorrupt: It is damaged.
            InvalidArgument: A later version of Wings wrote it.
        """
        try:
            outer: dict[str, Any] = json.loads(raw)
            found: dict[str, Any] = outer["manifest"]
            if outer["sha256"] != _checksum(found):
                raise StorageCorrupt(f"{name} is damaged: its checksum is another", file=name)
            version: int = found["version"]
        except (ValueError, LookupError, TypeError) as error:
            raise StorageCorrupt(f"{name} is no manifest: {error}", file=name) from None
        if version > MANIFEST_VERSION:
            raise InvalidArgument(
                f"{name} has version {version}, and this version of Wings reads up to "
                f"{MANIFEST_VERSION}: restore it with a later one"
            )
        try:
            manifest = cls.model_validate_json(json.dumps(found))
        except ValidationError as error:
            raise StorageCorrupt(f"{name} is no manifest: {error!s:.200}", file=name) from None
        for file in manifest.files:
            _check_parts(file, name)
        return manifest


def _check_parts(file: StoredFile, name: str) -> None:
    at = 0
    for part in file.parts:
        if part.start != at or part.end < part.start:
            raise StorageCorrupt(f"{name} has no part of {file.name} from byte {at} on", file=name)
        at = part.end


def _checksum(found: dict[str, Any]) -> str:
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
