"""A repository of backups, in a directory or a bucket.

    DEST/
      WINGS-BACKUPS                          marks a repository, with its version
      backups/ID.json                        a manifest, written last; it makes the backup exist
      folios/FOLIO/START-END.SHA256[.last]   bytes of a file with messages; all backups share them
      databases/SHA256                       bytes of a copied database

Every object is created whole and never changed. Files with messages only grow, so every backup can
use a part that an earlier backup stored, even an aborted one. An object's name has the part's range
and checksum; `.last` marks the last part of a file that is complete.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wings_core.contracts.messages import INT64_MAX
from wings_core.errors import AlreadyExists, InvalidArgument, StorageCorrupt
from wings_core.storage.objects import ObjectStore, open_objects
from wings_core.times import format_timestamp

MANIFEST_VERSION = 1
"""Version of manifests that this code writes, and the latest that it reads."""

Bytes = Annotated[int, Field(ge=0, le=INT64_MAX)]


def begin_of_id(at_us: int) -> str:
    """Return the begin of the id of a backup of a time; the order of ids is that of time."""
    return format_timestamp(at_us).translate({ord(each): None for each in "-:."})


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class FilePart(_Model):
    """A range of bytes `[start, end)` of a file, and the object that holds them."""

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
    parts: Annotated[tuple[FilePart, ...], Field(strict=False)]

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.parts[-1].end if self.parts else 0


class Manifest(_Model):
    """One backup."""

    version: Literal[1] = MANIFEST_VERSION
    backup: str
    """Id: the start time in UTC, and a random suffix."""
    wings: str
    """The version of Wings that took it."""
    log: str
    """The id of the metadata."""
    at_us: int
    """Moment of the snapshot, in microseconds since the epoch by the server's clock."""
    finished_at_us: int
    """End of the backup, in microseconds since the epoch by the client's clock."""
    format: int
    """The format of the data directory."""
    metadata_version: int
    copied_bytes: Bytes
    """Bytes that this backup added to the repository."""
    databases: Annotated[tuple[StoredFile, ...], Field(strict=False)]
    folios: Annotated[tuple[StoredFile, ...], Field(strict=False)]
    """Files with messages."""

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All files: the databases, then the files with messages."""
        return (*self.databases, *self.folios)

    @property
    def size(self) -> int:
        """The length of all files, in bytes."""
        return sum(file.size for file in self.files)

    def to_json(self) -> bytes:
        """Serialize the manifest, with a checksum."""
        found = self.model_dump(mode="json")
        text = json.dumps({"manifest": found, "sha256": _checksum(found)}, indent=1)
        return f"{text}\n".encode()

    @classmethod
    def of_json(cls, raw: bytes, name: str) -> "Manifest":
        """Parse a manifest and verify its checksum.

        Args:
            raw: The object's bytes.
            name: The object's name, for errors.

        Raises:
            StorageCorrupt: It is damaged.
            InvalidArgument: A later version of Wings wrote it.
        """
        try:
            outer: dict[str, Any] = json.loads(raw)
            found: dict[str, Any] = outer["manifest"]
            if outer["sha256"] != _checksum(found):
                raise StorageCorrupt(f"{name} is damaged: its checksum does not match", file=name)
            version: int = found["version"]
        except (ValueError, LookupError, TypeError) as error:
            raise StorageCorrupt(f"{name} is no manifest: {error}", file=name) from None
        if version > MANIFEST_VERSION:
            raise InvalidArgument(
                f"{name} has version {version}; this version of Wings reads up to "
                f"{MANIFEST_VERSION}: use a later version of Wings"
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


PART_BYTES = 32 * 1024 * 1024
"""Approximate size of a part: the most that is copied again after an abort, and held in memory."""

DATABASE_PART_BYTES = 1024 * 1024
"""Size of a part of a database; unchanged parts are shared with earlier backups."""

_MARK = "WINGS-BACKUPS"
_MARK_TEXT = re.compile(r"wings backups, version (\d{1,9})\n", re.ASCII)
_VERSION = 1
_PART = re.compile(
    r"folios/(?P<folio>.+)/(?P<start>[0-9a-f]{16})-(?P<end>[0-9a-f]{16})"
    r"\.(?P<sha256>[0-9a-f]{64})(?P<last>\.last)?",
    re.ASCII,
)
_ID = re.compile(r"\d{8}T\d{12}Z-[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A stored part of a folio."""

    part: FilePart
    is_last: bool


class Repository:
    """The backups in one place; see `open`. Objects can be put and read from any thread.

    Args:
        objects: The store of the objects.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    @classmethod
    def open(cls, url: str, *, create: bool = False) -> "Repository":
        """Open a repository.

        Args:
            url: A directory, or `s3://BUCKET/PREFIX`, `gs://…`, `az://…`.
            create: Create a repository if the place is empty.

        Raises:
            InvalidArgument: There is no repository, it has a later version, or the place has other
                contents.
            WingsError: The place cannot be used.
        """
        objects = open_objects(url)
        objects.check(write=create)
        repository = cls(objects)
        if not repository._is_marked():
            others = next(objects.list(), None)
            if others is not None:
                raise InvalidArgument(
                    f"{objects.url} is not a backup repository, and not empty: it holds "
                    f"{others.name}"
                )
            if not create:
                raise InvalidArgument(f"{objects.url} is not a backup repository: it is empty")
            repository._mark()
        return repository

    def manifests(self) -> list[str]:
        """Return the ids of the backups, the oldest first."""
        names = (each.name for each in self.objects.list("backups"))
        ids = (name.removeprefix("backups/").removesuffix(".json") for name in names)
        return sorted(each for each in ids if _ID.fullmatch(each))

    def manifest(self, backup: str) -> Manifest:
        """Return the manifest of a backup.

        Raises:
            InvalidArgument: There is no such backup, or a later version of Wings wrote it.
            StorageCorrupt: It is damaged.
        """
        if not _ID.fullmatch(backup):
            raise InvalidArgument(f"{backup!r:.80} is not the name of a backup")
        name = f"backups/{backup}.json"
        try:
            return Manifest.of_json(self.read(name), name)
        except StorageCorrupt as error:
            if not error.facts.get("missing"):
                raise
            raise InvalidArgument(f"there is no backup {backup} at {self.objects.url}") from None

    def newest(self) -> Manifest:
        """Return the manifest of the newest backup.

        Raises:
            InvalidArgument: There is none.
        """
        found = self.manifests()
        if not found:
            raise InvalidArgument(f"{self.objects.url} has no finished backup")
        return self.manifest(found[-1])

    def add(self, manifest: Manifest) -> None:
        """Store the manifest of a backup whose parts are all stored."""
        self.objects.put(f"backups/{manifest.backup}.json", [manifest.to_json()])

    def kept(self) -> dict[str, dict[int, KeptPart]]:
        """Return all stored parts of folios, by folio and start."""
        found: dict[str, dict[int, KeptPart]] = {}
        for each in self.objects.list("folios"):
            match = _PART.fullmatch(each.name)
            if match is None:
                continue
            start, end = int(match["start"], 16), int(match["end"], 16)
            if each.size != end - start:
                continue  # Damaged: copied again.
            part = FilePart(start=start, end=end, sha256=match["sha256"], object=each.name)
            parts = found.setdefault(match["folio"], {})
            known = parts.get(start)
            if known is None or known.part.end < end:
                parts[start] = KeptPart(part, match["last"] is not None)
        return found

    def databases(self) -> set[str]:
        """Return the names of the objects with bytes of databases."""
        return {
            each.name for each in self.objects.list("databases") if each.size or _EMPTY in each.name
        }

    def put_folio(self, folio: str, start: int, data: bytes, *, is_last: bool = False) -> FilePart:
        """Store bytes of a folio from `start` on; durable on return."""
        sha256 = hashlib.sha256(data).hexdigest()
        end = start + len(data)
        name = f"folios/{folio}/{start:016x}-{end:016x}.{sha256}{'.last' if is_last else ''}"
        self._put(name, data)
        return FilePart(start=start, end=end, sha256=sha256, object=name)

    def database_part(self, start: int, data: bytes) -> FilePart:
        """Describe bytes of a database as a part; `put_database` stores them."""
        sha256 = hashlib.sha256(data).hexdigest()
        name = f"databases/{sha256}"
        return FilePart(start=start, end=start + len(data), sha256=sha256, object=name)

    def put_database(self, part: FilePart, data: bytes) -> None:
        """Store bytes of a database."""
        self._put(part.object, data)

    def read(self, name: str) -> bytes:
        """Return an object's bytes.

        Raises:
            StorageCorrupt: The object is missing; the fact `missing` is true.
        """
        size = self.objects.size(name)
        return self.objects.read(name, [(0, size)])[0].to_pybytes() if size else b""

    def read_part(self, file: StoredFile, part: FilePart) -> bytes:
        """Return the bytes of a part.

        Raises:
            StorageCorrupt: The object is missing or damaged.
        """
        try:
            data = self.read(part.object)
        except StorageCorrupt as error:
            raise StorageCorrupt(
                f"{file.name}, bytes {part.start} to {part.end}: {error.message}",
                file=part.object,
            ) from None
        if len(data) != part.size or hashlib.sha256(data).hexdigest() != part.sha256:
            raise StorageCorrupt(
                f"{file.name}, bytes {part.start} to {part.end}: {part.object} is damaged",
                file=part.object,
            )
        return data

    def problems(self, manifests: Sequence[Manifest]) -> Iterator[str]:
        """Yield the problems of backups; reads each of their parts once."""
        seen: set[str] = set()
        for manifest in manifests:
            for file in manifest.files:
                for part in file.parts:
                    if part.object in seen:
                        continue
                    seen.add(part.object)
                    try:
                        self.read_part(file, part)
                    except StorageCorrupt as error:
                        yield error.message

    def prune(self, keep: int) -> tuple[int, int]:
        """Delete all backups but the newest ones, then all objects that no backup refers to.

        Must not run during a backup to this repository, whose parts nothing refers to yet.

        Args:
            keep: Number of backups to keep.

        Returns:
            The number of backups deleted, and the number of bytes.

        Raises:
            StorageCorrupt: A manifest to keep is damaged; nothing was deleted.
        """
        names = self.manifests()
        kept = [self.manifest(each) for each in names[-keep:]]
        needed = {part.object for each in kept for file in each.files for part in file.parts}
        for each in names[:-keep]:
            self.objects.delete(f"backups/{each}.json")
        freed = 0
        for prefix in ("folios", "databases"):
            for found in list(self.objects.list(prefix)):
                if found.name not in needed:
                    self.objects.delete(found.name)
                    freed += found.size
        return len(names[:-keep]), freed

    def _put(self, name: str, data: bytes) -> None:
        try:
            self.objects.put(name, [data])
        except AlreadyExists:
            # By its name the object has the same bytes; a damaged one is deleted first.
            if self.read(name) == data:
                return
            self.objects.delete(name)
            self.objects.put(name, [data])

    def _is_marked(self) -> bool:
        try:
            raw = self.read(_MARK)
        except StorageCorrupt:
            return False
        match = _MARK_TEXT.fullmatch(raw.decode("utf-8", "replace"))
        if match is None:
            raise InvalidArgument(f"{self.objects.url}/{_MARK} says {raw[:40]!r}")
        if int(match[1]) > _VERSION:
            raise InvalidArgument(
                f"the backups at {self.objects.url} have version {match[1]}; this version of "
                f"Wings reads up to {_VERSION}"
            )
        return True

    def _mark(self) -> None:
        try:
            self.objects.put(_MARK, [f"wings backups, version {_VERSION}\n".encode()])
        except AlreadyExists:
            self._is_marked()  # Another backup marked it meanwhile.


_EMPTY = hashlib.sha256(b"").hexdigest()
