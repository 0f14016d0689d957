"""The settings of a source: a TOML file, as a frozen model."""

import codecs
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wings_client.files.formats import FileFormat
from wings_client.files.opened import NULLS, QUOTE
from wings_client.files.parts import ChosenColumns
from wings_core.contracts.messages import problem_of, sentence, shortened
from wings_core.errors import InvalidArgument
from wings_core.queue.coordinator import CoordinatorSettings
from wings_core.queue.notifications import DedupKey, MessageKind, is_object
from wings_core.times import DURATION
from wings_spark.connection import ServerAccess
from wings_spark.ingest.columns import OnNewColumns
from wings_spark.ingest.files import Patterns, Places, check_place

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Seconds = Annotated[float, DURATION, Field(gt=0, le=100 * 366 * 86_400.0)]
Pattern = Annotated[str, Field(min_length=1, max_length=1_000)]

Column = Annotated[str, Field(min_length=1, max_length=255)]

_QUEUE_KEYS = {
    "sqlite": (("path",), ()),
    "directory": (("path",), ("state",)),
    "s3-listing": (("url",), ("state",)),
    "sqs": (("url",), ("region", "endpoint")),
    "pubsub": (("subscription",), ()),
    "azure": (("url",), ()),
    "share": (("topic", "group"), ("column", "endpoint", "token_file")),
}
"""Required and optional keys by kind of queue."""

_EVENTS = {
    "sqs": MessageKind.S3_EVENTS,
    "pubsub": MessageKind.GCS_EVENTS,
    "azure": MessageKind.AZURE_EVENTS,
}
"""Default format of messages by kind of queue."""

_WITHOUT_PLACE = ("sqs", "pubsub", "azure", "share")
"""Kinds of queues that have no directory of their own."""

_LISTED = ("directory", "s3-listing")
"""Kinds of queues that find files themselves."""

_OF_KINDS = {key for keys in _QUEUE_KEYS.values() for part in keys for key in part}


class SettingsSection(BaseModel):
    """A section of a source's TOML: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


_AnySection = TypeVar("_AnySection", bound=SettingsSection)


class Lineage(SettingsSection):
    """Columns of the topic for the origin of each row; each is added only if named."""

    file: Column | None = None
    """Name of a string column for the file's URI."""
    offset: Column | None = None
    """Name of an int64 column for the row's number in the file, from 0."""
    version: Column | None = None
    """Name of a string column for the version of the file that was read, null if it has none.

    In S3 this is the version's id, or `etag:TAG`; elsewhere `SIZE-MTIME`, in bytes and nanoseconds.
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in use."""
        return tuple(name for name in (self.file, self.offset, self.version) if name is not None)

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise problem_of("a column is named twice")
        return self


class FileSettings(SettingsSection):
    """Settings for reading files."""

    format: FileFormat | None = None
    """Format of all files; absent: by each file's name, or its first bytes."""
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """Delimiter of CSV."""
    encoding: str | None = None
    """Python's name of the encoding of CSV; absent: UTF-8."""
    quote: Annotated[str, Field(max_length=1)] = QUOTE
    """Quote around values of CSV; empty: none."""
    null_texts: tuple[str, ...] = NULLS
    """Unquoted values of CSV that are null."""
    include: tuple[Pattern, ...] = ()
    """Patterns of the announced files to read; empty: all."""
    exclude: tuple[Pattern, ...] = ()
    """Patterns of announced files not to read."""
    columns: tuple[str, ...] = ()
    """Columns of files to read; empty: all."""
    exclude_columns: tuple[str, ...] = ()
    """Columns of files not to read."""
    partition_columns: tuple[Column, ...] = ()
    """Columns of the topic with values in the file's path, as folders `NAME=VALUE`."""
    dedup_key: DedupKey | None = None
    """Identity of a file; absent: URI and version for a directory, else the URI."""
    allowed_prefixes: tuple[str, ...] | None = None
    """Buckets, folders of them, and directories whose files may be read. Absent: the watched
    directory, or that of a SQLite queue's file."""
    rescued_column: Column | None = None
    """A string column for rows that do not fit; absent: a file with such a row fails."""
    on_new_columns: OnNewColumns | None = None
    """Treatment of columns that the topic lacks. Absent: `rescue` with a rescued column, else
    `fail`."""
    lineage: Lineage = Lineage()
    archive: str | None = None
    """A directory, or a folder in the bucket of the files, to which completely published files are
    moved. Absent: they are kept in place."""
    delete: bool = False
    """Whether completely published files are deleted."""
    region: str | None = None
    """Region of S3."""
    endpoint: str | None = None
    """Endpoint of another service that speaks S3, or Google's or Azure's storage."""

    @property
    def new_columns(self) -> OnNewColumns:
        """Treatment of columns that the topic lacks."""
        if self.on_new_columns is not None:
            return self.on_new_columns
        return OnNewColumns.FAIL if self.rescued_column is None else OnNewColumns.RESCUE

    @property
    def chosen(self) -> ChosenColumns:
        """Columns of files to read."""
        return ChosenColumns(frozenset(self.columns) or None, frozenset(self.exclude_columns))

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
        """Whether CSV can be split into rows by its bytes, as UTF-8 with usual quotes."""
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


class QueueSettings(SettingsSection):
    """The queue of a source's messages."""

    kind: Literal["sqlite", "directory", "s3-listing", "sqs", "pubsub", "azure", "share"]
    path: Path | None = None
    """Path of a SQLite queue's file, or of the watched directory."""
    state: Path | None = None
    """File of the queue's state. Absent: for a directory, `.wings/queue.sqlite` in it; for a listed
    bucket, `listing.sqlite` in the checkpoint."""
    url: str | None = None
    """URL of a queue of SQS or Azure, or of a listed bucket: `s3://BUCKET/FOLDER`."""
    subscription: str | None = None
    """Subscription of Pub/Sub: `projects/PROJECT/subscriptions/NAME`."""
    list_seconds: Annotated[float, DURATION, Field(ge=1, le=86_400)] = 60.0
    """Least time between the beginnings of two listings."""
    region: str | None = None
    endpoint: str | None = None
    """Endpoint of another service that speaks SQS, or of a share group's server other than the
    target's."""
    token_file: Path | None = None
    """File with the token for the server of `endpoint`."""
    topic: str | None = None
    group: str | None = None
    """An existing share group of the topic."""
    column: Column | None = None
    """The topic's string column with the messages; absent: `body`."""
    messages: MessageKind | None = None
    """The messages' format; absent: notifications of the cloud whose queue it is, else URIs."""
    visibility_seconds: Annotated[float, DURATION, Field(ge=1, le=43_200)] = 60.0
    wait_seconds: Annotated[float, DURATION, Field(ge=0, le=20)] = 1.0

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        needed, optional = _QUEUE_KEYS[self.kind]
        for key in sorted({*needed, *_OF_KINDS}):
            is_given = getattr(self, key) is not None
            if key in needed and not is_given:
                raise problem_of(f"a queue of kind {self.kind!r} needs the key {key!r}")
            if is_given and key not in {*needed, *optional}:
                raise problem_of(f"a queue of kind {self.kind!r} has no key {key!r}")
        if self.kind in _LISTED and self.message_kind is not MessageKind.URIS:
            raise problem_of(f"the messages of a queue of kind {self.kind!r} are 'uris'")
        if self.kind == "s3-listing" and not str(self.url).startswith("s3://"):
            raise problem_of(f"'url' must be s3://BUCKET/FOLDER, not {self.url!r:.80}")
        return self

    @property
    def message_kind(self) -> MessageKind:
        """The messages' format."""
        if self.messages is not None:
            return self.messages
        return _EVENTS.get(self.kind, MessageKind.URIS)


class TargetSettings(SettingsSection):
    """Server and topic that rows are written to."""

    endpoint: str
    """URL of the server, like `grpc://host:7777`."""
    topic: str
    token_file: Path | None = None
    """File of the token, on the driver as those of TLS; absent: the token of `WINGS_TOKEN`."""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def server(self) -> ServerAccess:
        """Return the server, with the token and certificates; reads their files.

        Raises:
            InvalidArgument: A file cannot be read.
        """
        return ServerAccess.of(
            self.endpoint, None, self.token_file, self.tls_ca, self.tls_cert, self.tls_key
        )


class LimitSettings(SettingsSection):
    """Limits of a batch, its interval, and timeouts."""

    files_per_trigger: Annotated[int, Field(ge=1, le=1_000)] = 100
    bytes_per_trigger: Annotated[int, Field(ge=1)] | None = None
    """Most bytes of files in a batch, as far as sizes are known; a single file may be larger."""
    rows_per_file: Annotated[int, Field(ge=1)] | None = None
    """Most rows of one file in a batch: later batches read the rest. Absent: all."""
    split_bytes: Annotated[int, Field(ge=1)] = 32 * 1024 * 1024
    """Size above which several tasks read a file, in sections of about this size, if possible."""
    trigger_seconds: Seconds = 1.0
    commit_timeout_seconds: Annotated[float, DURATION, Field(ge=1, le=86_400)] = 60.0
    """Half the time after which an owner that has not renewed its files is replaced."""
    max_delivery_attempts: Annotated[int, Field(ge=1, le=100)] = 5
    deduplication_seconds: Seconds = 7 * 86_400.0
    tasks: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Tasks of a batch; absent: Spark's default parallelism."""


class OwnTopicSettings(SettingsSection):
    """A topic of rows that the source writes itself."""

    topic: str | None = None
    """Name of the topic, created if missing; absent: none."""


class MetricsSettings(SettingsSection):
    """Figures of a run for Prometheus."""

    listen: Annotated[str, Field(pattern=r"^[^\s/]*:\d{1,5}$")] | None = None
    """`HOST:PORT` of `http://HOST:PORT/metrics`; absent: none are served."""


class SourceSettings(SettingsSection):
    """A source: one queue, one target. Pipelines of one name share the state of its files."""

    name: Name
    checkpoint: Path
    """Directory of the query's checkpoint, and of the pipeline's journal."""
    class_archive: bool = False
    """Whether an archive of Spark's classes is kept beside the checkpoint, for faster starts."""
    queue: QueueSettings
    target: TargetSettings
    files: FileSettings = FileSettings()
    limits: LimitSettings = LimitSettings()
    dead_letters: OwnTopicSettings = OwnTopicSettings()
    """A row for each dead file."""
    history: OwnTopicSettings = OwnTopicSettings()
    """A row for each file of each batch."""
    metrics: MetricsSettings = MetricsSettings()

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        announces = self.queue.message_kind is not MessageKind.PAYLOADS
        if announces and self.queue.kind in _WITHOUT_PLACE and self.files.allowed_prefixes is None:
            raise problem_of(
                f"a queue of kind {self.queue.kind!r} needs 'files.allowed_prefixes': the buckets "
                "and directories that its messages may name"
            )
        return self

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; relative paths in it are relative to its directory.

        Raises:
            InvalidArgument: The file does not exist, is not TOML, or has an invalid key or value;
                the message names the key.
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
            what: Name of the file, for errors.

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

    def queue_server(self) -> ServerAccess:
        """Return the server of a share group, with the token and certificates for it.

        The target's token is not sent to another server.

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
        """Places that the source may read, with absolute paths."""
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
        """Patterns of the allowed files that the source takes."""
        return Patterns(self.files.include, self.files.exclude, self.places.prefixes)

    @property
    def journal_directory(self) -> Path:
        """The directory of the pipeline's journal."""
        return self.checkpoint / "wings"

    @property
    def receipts(self) -> Path:
        """File of a cloud queue's receipts, beside the journal."""
        return self.journal_directory / "receipts.sqlite"

    @property
    def dedup_key(self) -> DedupKey:
        """Identity of a file."""
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
