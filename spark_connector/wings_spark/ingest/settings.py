"""The settings of a source: a TOML file, as a frozen model."""

import codecs
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from wings_client.files.formats import FileFormat
from wings_client.files.opened import NULLS, QUOTE
from wings_client.files.parts import Chosen
from wings_core.contracts.messages import problem_of, sentence, shortened
from wings_core.errors import InvalidArgument
from wings_core.queue.coordinator import CoordinatorSettings
from wings_core.queue.notifications import DedupKey, MessageKind
from wings_core.queue.uris import is_object
from wings_spark.connection import Server
from wings_spark.ingest.columns import OnNewColumns
from wings_spark.ingest.paths import Patterns
from wings_spark.ingest.places import Places, check_place
from wings_spark.ingest.queue_settings import WITHOUT_PLACE, Column, QueueSettings, Section

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Seconds = Annotated[float, Field(gt=0, le=100 * 366 * 86_400.0)]
Pattern = Annotated[str, Field(min_length=1, max_length=1_000)]


_AnySection = TypeVar("_AnySection", bound=Section)


class Lineage(Section):
    """Columns of the topic for the origin of each row; each only if it is named."""

    file: Column | None = None
    """A string: the file's URI."""
    offset: Column | None = None
    """An int64: the row's number in the file, from 0."""
    version: Column | None = None
    """A string: the version of the file that was read, null if it has none.

    In S3 the version's id, or `etag:TAG`; elsewhere `SIZE-MTIME`, in bytes and nanoseconds.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are named."""
        return tuple(name for name in (self.file, self.offset, self.version) if name is not None)

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise problem_of("a column is named twice")
        return self


class FileSettings(Section):
    """How files are read."""

    format: FileFormat | None = None
    """Absent: by each file's name, or its first bytes."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """Of CSV."""
    encoding: str | None = None
    """Of CSV, as Python names it; absent: UTF-8."""
    quote: Annotated[str, Field(max_length=1)] = QUOTE
    """Around values of CSV; empty: none."""
    null_texts: tuple[str, ...] = NULLS
    """Values of CSV that are null, where they are not quoted."""
    include: tuple[Pattern, ...] = ()
    """Of the files that are announced, those that match one of these are read. Empty: all."""
    exclude: tuple[Pattern, ...] = ()
    """But none that match one of these."""
    columns: tuple[str, ...] = ()
    """Of the columns of files, these are read. Empty: all."""
    exclude_columns: tuple[str, ...] = ()
    """But none of these."""
    partition_columns: tuple[Column, ...] = ()
    """Columns of the topic whose values are in the file's path, as folders `NAME=VALUE`."""
    dedup_key: DedupKey | None = None
    """Absent: URI and version for a directory, else the URI."""
    allowed_prefixes: tuple[str, ...] | None = None
    """Buckets, folders of them, and directories: no other file is read. Absent: the directory that
    is watched, or that of a SQLite queue's file."""
    rescued_column: Column | None = None
    """A string column for rows that do not fit; absent: a file with one fails."""
    on_new_columns: OnNewColumns | None = None
    """Columns of files that the topic does not have. Absent: `rescue` with a rescued column, else
    `fail`."""
    lineage: Lineage = Lineage()
    archive: str | None = None
    """A directory, or a folder in the bucket of the files, to which files are moved that are
    published to their end. Absent: they stay."""
    delete: bool = False
    """Whether they are deleted."""
    region: str | None = None
    """Of S3."""
    endpoint: str | None = None
    """Of another service that speaks S3, or Google's or Azure's storage."""

    @property
    def new_columns(self) -> OnNewColumns:
        """What happens to columns that the topic does not have."""
        if self.on_new_columns is not None:
            return self.on_new_columns
        return OnNewColumns.FAIL if self.rescued_column is None else OnNewColumns.RESCUE

    @property
    def chosen(self) -> Chosen:
        """Which columns of files are read."""
        return Chosen(frozenset(self.columns) or None, frozenset(self.exclude_columns))

    def _check_text(self) -> None:
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise problem_of(f"'encoding': {self.encoding!r:.80} is no encoding") from None
        if self.quote and self.quote == (self.delimiter or ","):
            raise problem_of("'quote' is the delimiter too")
        if len(self.quote.encode()) > 1 or (self.delimiter and len(self.delimiter.encode()) > 1):
            raise problem_of("'quote' and 'delimiter' must be ASCII characters")

    @property
    def is_plain_text(self) -> bool:
        """Whether the bytes of CSV divide it into rows as those of UTF-8 with usual quotes do."""
        return self.encoding is None and self.quote == QUOTE

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.on_new_columns is OnNewColumns.RESCUE and self.rescued_column is None:
            raise problem_of("'on_new_columns' is 'rescue', which needs a 'rescued_column'")
        own = [*self.lineage.columns, *self.partition_columns]
        own += [] if self.rescued_column is None else [self.rescued_column]
        for name in own:
            if own.count(name) > 1:
                raise problem_of(
                    f"{name!r} is named twice: 'rescued_column', 'lineage' and "
                    "'partition_columns' are columns of their own"
                )
        self._check_text()
        if self.delete and self.archive is not None:
            raise problem_of("a file cannot be both archived and deleted")
        for place in self.allowed_prefixes or ():
            try:
                check_place(place)
            except InvalidArgument as error:
                raise problem_of(f"'allowed_prefixes': {error.message}") from None
        return self


class TargetSettings(Section):
    """Where rows go."""

    endpoint: str
    """Like `grpc://host:7777`."""
    topic: str
    token_file: Path | None = None
    """On the driver, as those of TLS; absent: the token of `WINGS_TOKEN`."""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def server(self) -> Server:
        """Return the server, with the token and certificates; reads their files.

        Raises:
            InvalidArgument: One cannot be read.
        """
        return Server.of(
            self.endpoint, None, self.token_file, self.tls_ca, self.tls_cert, self.tls_key
        )


class LimitSettings(Section):
    """Limits of a batch, its interval, and timeouts."""

    files_per_trigger: Annotated[int, Field(ge=1, le=1_000)] = 100
    bytes_per_trigger: Annotated[int, Field(ge=1)] | None = None
    """As far as sizes are known; one file may be larger."""
    rows_per_file: Annotated[int, Field(ge=1)] | None = None
    """Of one file in one batch: the rest is read by later ones. Absent: all."""
    split_bytes: Annotated[int, Field(ge=1)] = 32 * 1024 * 1024
    """A larger file is read by several tasks, in sections of about this size, if possible."""
    trigger_seconds: Seconds = 1.0
    commit_timeout_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60.0
    """An owner of files that has not renewed them for twice as long is replaced."""
    max_delivery_attempts: Annotated[int, Field(ge=1, le=100)] = 5
    deduplication_seconds: Seconds = 7 * 86_400.0
    tasks: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Of one batch; absent: Spark's default parallelism."""


class DeadLetterSettings(Section):
    """The topic of rows for dead files."""

    topic: str | None = None
    """Created if missing; absent: none."""


class HistorySettings(Section):
    """The topic of rows for each file of each batch."""

    topic: str | None = None
    """Created if missing; absent: none."""


class MetricsSettings(Section):
    """Figures of a run for Prometheus."""

    listen: Annotated[str, Field(pattern=r"^[^\s/]*:\d{1,5}$")] | None = None
    """`HOST:PORT` of `http://HOST:PORT/metrics`; absent: none are served."""


class SourceSettings(Section):
    """A source: one queue, one target. Pipelines of one name share the state of its files."""

    name: Name
    checkpoint: Path
    """Of the query, and of the pipeline's journal."""
    class_archive: bool = False
    """Whether an archive of Spark's classes is kept beside the checkpoint, for faster starts."""
    queue: QueueSettings
    target: TargetSettings
    files: FileSettings = FileSettings()
    limits: LimitSettings = LimitSettings()
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    history: HistorySettings = HistorySettings()
    metrics: MetricsSettings = MetricsSettings()

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        announces = self.queue.message_kind is not MessageKind.PAYLOADS
        if announces and self.queue.kind in WITHOUT_PLACE and self.files.allowed_prefixes is None:
            raise problem_of(
                f"a queue of kind {self.queue.kind!r} needs 'files.allowed_prefixes': the buckets "
                "and directories that its messages may name"
            )
        return self

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; relative paths in it are relative to its directory.

        Raises:
            InvalidArgument: It does not exist, is not TOML, or has an invalid key or value; the
                message names the key.
        """
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidArgument(f"{path}: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{path} is not TOML: {error}") from None
        base = path.absolute().parent
        return cls.parse(found, str(path)).at(base)

    @classmethod
    def parse(cls, found: dict[str, Any], what: str) -> Self:
        """Validate settings.

        Args:
            found: The parsed TOML.
            what: Its name, for errors.

        Raises:
            InvalidArgument: A key or value is invalid.
        """
        try:
            return cls.model_validate(found)
        except ValidationError as problem:
            raise InvalidArgument(shortened(f"{what}: {sentence(problem, cls)}")) from None

    def at(self, base: Path) -> Self:
        """Return the settings with paths relative to `base` made absolute."""
        allowed = self.files.allowed_prefixes
        if allowed is not None:
            allowed = tuple(
                each if is_object(each) else os.path.normpath(base / each) for each in allowed
            )
        archive = self.files.archive
        if archive is not None and not is_object(archive):
            archive = os.path.normpath(base / archive)
        files = self.files.model_copy(update={"allowed_prefixes": allowed, "archive": archive})
        return self.model_copy(
            update={
                "queue": _at(base, self.queue, ("path", "state", "token_file")),
                "target": _at(base, self.target, ("token_file", "tls_ca", "tls_cert", "tls_key")),
                "files": files,
                "checkpoint": base / self.checkpoint,
            }
        )

    def queue_server(self) -> Server:
        """Return the server of a share group, with the token and certificates for it.

        The target's token is not shown to another server.

        Raises:
            InvalidArgument: A file cannot be read.
        """
        target, queue = self.target, self.queue
        if queue.endpoint is not None:
            changes = {"endpoint": queue.endpoint, "token_file": queue.token_file}
            target = target.model_copy(update=changes)
        elif queue.token_file is not None:
            target = target.model_copy(update={"token_file": queue.token_file})
        return target.server()

    @property
    def places(self) -> Places:
        """What the source may read; its paths are absolute."""
        if self.files.allowed_prefixes is not None:
            return Places(self.files.allowed_prefixes)
        path = self.queue.path
        if self.queue.kind == "s3-listing" and self.queue.url is not None:
            return Places((self.queue.url.rstrip("/"),))
        if path is None:
            return Places(())
        directory = path if self.queue.kind == "directory" else path.parent
        return Places([os.path.normpath(directory.absolute())])

    @property
    def patterns(self) -> Patterns:
        """Which of the files that it may read it takes."""
        return Patterns(self.files.include, self.files.exclude, self.places.prefixes)

    @property
    def journal_directory(self) -> Path:
        """The directory of the pipeline's journal."""
        return self.checkpoint / "wings"

    @property
    def receipts(self) -> Path:
        """Where what a cloud gave in the place of receipts is kept, beside the journal."""
        return self.journal_directory / "receipts.sqlite"

    @property
    def dedup_key(self) -> DedupKey:
        """What identifies a file."""
        if self.files.dedup_key is not None:
            return self.files.dedup_key
        return DedupKey.URI_AND_VERSION if self.queue.kind == "directory" else DedupKey.URI

    def coordinator(self) -> CoordinatorSettings:
        """Return the settings of the pipeline's coordinator."""
        return CoordinatorSettings(
            kind=self.queue.message_kind,
            dedup_key=self.dedup_key,
            files_max=self.limits.files_per_trigger,
            bytes_max=self.limits.bytes_per_trigger,
            visibility_seconds=self.queue.visibility_seconds,
            wait_seconds=self.queue.wait_seconds,
            deduplication_seconds=self.limits.deduplication_seconds,
            takes=self.patterns.takes,
        )


def _at(base: Path, section: _AnySection, keys: tuple[str, ...]) -> _AnySection:
    """Return a section with the paths at some keys relative to `base`."""
    found = {key: getattr(section, key) for key in keys}
    return section.model_copy(
        update={key: base / path for key, path in found.items() if path is not None}
    )
