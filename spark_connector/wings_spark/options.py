"""Options that users set with `.option(…)`, as a frozen model; errors name the option.

Spark passes options as strings, and their names without regard to case. An unknown option is an
error: a misspelt `startingOffsets` would otherwise read everything.

Options of tables, `CREATE TABLE … USING wings OPTIONS (…)`, Spark passes to a data source in Python
only when the table is created, not when it is read or written. It keeps the schema with the
columns' metadata: so the options are stored there, and found in the schema passed to reads, writes
and streams of the table. Spark never requests the schema again: if the topic has grown since, users
must alter the table's columns.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import pyarrow as pa
from pydantic import (
    AfterValidator,
    AliasGenerator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from wings_core.arrow_types import fields_of
from wings_core.contracts.messages import INT64_MAX, problem_of, sentence, shortened, shown
from wings_core.contracts.reads import Columns
from wings_core.errors import InvalidArgument, WingsError
from wings_core.names import DEFAULT_NAMESPACE, NamespaceName
from wings_core.times import parse_timestamp
from wings_spark.bounds import Bound, parse_bound
from wings_spark.connection import RETRY_SECONDS, ServerAccess
from wings_spark.ranges import TASKS_MAX

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MAX_TRIGGER_DELAY_SECONDS = 15 * 60.0
"""Default time for which a trigger waits for `minOffsetsPerTrigger`, as in Kafka's source."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?", re.ASCII)
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

_BATCH_ONLY = ("ending_offsets", "ending_timestamp")
_STREAM_ONLY = ("max_offsets_per_trigger", "min_offsets_per_trigger", "max_trigger_delay")

_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of the stream itself that Spark passes too, in lower case."""

_PROVIDER = "provider"

_OPTION = "option."
"""Prefix with which Spark repeats each option: it also passes a table's own properties (provider,
owner, comment, the user's TBLPROPERTIES) among the options."""

_SECRET = "token"

_METADATA = "wings.options"

_logger = logging.getLogger("wings_spark")


def _names(text: object) -> object:
    """Read a list of names: JSON, or separated by commas."""
    if not isinstance(text, str):
        return text
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except ValueError as problem:
            raise problem_of(f"not valid JSON: {problem}") from None
    return [name.strip() for name in text.split(",")]


def _duration(text: object) -> object:
    """Read a duration such as `15m`; without a unit, milliseconds."""
    match = _DURATION.fullmatch(str(text).strip().lower())
    if match is None:
        raise problem_of(f"must be a duration like 30s, 15m or 1h; got {shown(text)}")
    return int(match[1]) * _UNIT_SECONDS[match[2] or "ms"]


def _timestamp(text: object) -> object:
    """Read a time: milliseconds since the epoch, or RFC 3339; return microseconds."""
    found = str(text).strip()
    try:
        if re.fullmatch(r"-?\d{1,15}", found, re.ASCII):
            return parse_timestamp((_EPOCH + timedelta(milliseconds=int(found))).isoformat())
        return parse_timestamp(found, up=True)
    except (WingsError, OverflowError) as error:
        raise problem_of(
            f"must be milliseconds since the epoch or RFC 3339 with a zone; got {shown(text)}"
        ) from error


def _bound(text: object) -> object:
    try:
        return parse_bound(str(text))
    except WingsError as error:
        raise problem_of(error.message) from None


def _pattern(text: str) -> str:
    try:
        split_pattern(text)
    except WingsError as error:
        raise problem_of(error.message) from None
    return text


Duration = Annotated[float, BeforeValidator(_duration)]
Names = Annotated[Columns, BeforeValidator(_names)]
Bounds = Annotated[Bound, BeforeValidator(_bound)]
Time = Annotated[int, BeforeValidator(_timestamp)]
FileName = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=INT64_MAX)]


class Options(BaseModel):
    """Options common to reads and writes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        alias_generator=AliasGenerator(alias=to_camel),
    )

    synonyms: ClassVar[Mapping[str, str]] = {"path": "topic"}
    """Other names of options, in lower case: `load("flights")` passes the topic as `path`."""

    endpoint: Annotated[str, Field(min_length=1)]
    """URL of the server, like `grpc://host:7777`."""
    token: SecretStr | None = None
    token_file: FileName | None = None
    """File of the token, on the driver as those of TLS: tasks get the content."""
    tls_ca: FileName | None = None
    tls_cert: FileName | None = None
    tls_key: FileName | None = None

    @property
    def server(self) -> ServerAccess:
        """The server, with the token and certificates; reads their files.

        Raises:
            InvalidArgument: A file cannot be read.
        """
        token = None if self.token is None else self.token.get_secret_value()
        return ServerAccess.of(
            self.endpoint, token, self.token_file, self.tls_ca, self.tls_cert, self.tls_key
        )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Validate options as Spark passes them.

        Raises:
            InvalidArgument: An option is missing, unknown, or has a bad value; the message names
                it.
        """
        known = {str(field.alias).lower(): str(field.alias) for field in cls.model_fields.values()}
        found: dict[str, Any] = {}
        for name, value in given.items():
            folded = cls.synonyms.get(name.lower(), name.lower())
            alias = known.get(folded, name)
            if found.get(alias, value) != value:
                raise InvalidArgument(f"option {alias!r} is given twice")
            found[alias] = value
        try:
            return cls.model_validate(found)
        except ValidationError as problem:
            # The model's messages say "key".
            raise InvalidArgument(
                shortened(sentence(problem, cls).replace("key", "option", 1))
            ) from None

    def refuse(self, names: tuple[str, ...], kind: str) -> Self:
        """Return the options unchanged, if none of `names` is set.

        Raises:
            InvalidArgument: An option is set that is only for `kind`.
        """
        for name in names:
            if getattr(self, name) is not None:
                raise InvalidArgument(f"option {to_camel(name)!r} is for {kind} alone")
        return self


class SparkReadOptions(Options):
    """Options of reads, both batches and streams."""

    topic: Annotated[str, Field(min_length=1)] | None = None
    topics_pattern: Annotated[str, AfterValidator(_pattern)] | None = None
    columns: Names | None = None
    filter: Annotated[str, Field(min_length=1)] | None = None
    include_system_columns: bool = False
    min_partitions: Annotated[int, Field(ge=1, le=TASKS_MAX)] | None = None
    max_records_per_partition: Count | None = None
    fail_on_data_loss: bool = True
    starting_offsets: Bounds | None = None
    starting_timestamp: Time | None = None
    ending_offsets: Bounds | None = None
    ending_timestamp: Time | None = None
    max_offsets_per_trigger: Count | None = None
    min_offsets_per_trigger: Count | None = None
    max_trigger_delay: Duration | None = None
    retry_timeout: Duration | None = None

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.topic is None) == (self.topics_pattern is None):
            raise problem_of("give exactly one of the options 'topic' and 'topicsPattern'")
        for end in ("starting", "ending"):
            if None not in (getattr(self, f"{end}_offsets"), getattr(self, f"{end}_timestamp")):
                raise problem_of(f"options '{end}Offsets' and '{end}Timestamp' exclude each other")
        most, least = self.max_offsets_per_trigger, self.min_offsets_per_trigger
        if most is not None and least is not None and least > most:
            raise problem_of(
                "option 'minOffsetsPerTrigger' must be at most 'maxOffsetsPerTrigger' "
                f"({most}); got {least}"
            )
        if self.max_trigger_delay is not None and least is None:
            raise problem_of("option 'maxTriggerDelay' needs 'minOffsetsPerTrigger'")
        return self

    def for_batch(self) -> Self:
        """Return the options, checked for a batch read.

        Raises:
            InvalidArgument: An option is only for streams.
        """
        return self.refuse(_STREAM_ONLY, "streams")

    def for_stream(self) -> Self:
        """Return the options, checked for a stream.

        Raises:
            InvalidArgument: An option is only for batch reads.
        """
        checked = self.refuse(_BATCH_ONLY, "batch reads")
        if checked.retry_timeout is not None:
            return checked
        return checked.model_copy(update={"retry_timeout": RETRY_SECONDS})

    def start(self, default: Bound) -> Bound:
        """Return the start of the read: the option's bound, else `default`."""
        return _one(self.starting_offsets, self.starting_timestamp, default)

    def end(self, default: Bound) -> Bound:
        """Return the end of the read: the option's bound, else `default`."""
        return _one(self.ending_offsets, self.ending_timestamp, default)


class WriteOptions(Options):
    """Options of writes, both batches and streams."""

    topic: Annotated[str, Field(min_length=1)]
    txn_app_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Application id which, with `txn_version`, makes a repeated write published once, as in Delta
    Lake."""
    txn_version: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None

    @classmethod
    def for_stream(cls, given: Mapping[str, str]) -> Self:
        """Validate the options of a streaming write.

        Raises:
            InvalidArgument: See `parse`; or an option is only for batch writes.
        """
        found = {name: value for name, value in given.items() if name.lower() not in _OF_SPARK}
        return cls.parse(found).refuse(("txn_app_id", "txn_version"), "batch writes")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if (self.txn_app_id is None) != (self.txn_version is None):
            raise problem_of("options 'txnAppId' and 'txnVersion' go together: give both or none")
        return self


def split_pattern(text: str) -> tuple[NamespaceName, re.Pattern[str]]:
    """Return the namespace and the pattern of topic ids in an option `topicsPattern`.

    Args:
        text: A regular expression for ids of topics in the default namespace, or
            `tenants/T/namespaces/N/topics/` and one for topics in another.

    Raises:
        InvalidArgument: The text has no valid regular expression, or no valid name before it.
    """
    before, found, pattern = text.rpartition("/topics/")
    namespace = NamespaceName.parse(before) if found else DEFAULT_NAMESPACE
    try:
        return namespace, re.compile(pattern)
    except re.error as problem:
        raise InvalidArgument(f"{pattern!r:.80} is not a regular expression: {problem}") from None


def plain_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return a user's options, without the properties of a table being created."""
    if not is_of_table(given):
        return dict(given)
    begin = len(_OPTION)
    return {name[begin:]: given[name] for name in given if name.startswith(_OPTION)}


def is_of_table(given: Mapping[str, str]) -> bool:
    """Return whether options belong to a table being created."""
    return _PROVIDER in given


def with_options(schema: "StructType", options: Mapping[str, str]) -> "StructType":
    """Return a schema whose columns carry the options of their table.

    Raises:
        InvalidArgument: An option is a secret.
    """
    from pyspark.sql.types import StructField, StructType

    if any(name.lower() == _SECRET for name in options):
        raise InvalidArgument(
            "option 'token' would be kept in the catalog, where others can read it: give "
            "'tokenFile', or set WINGS_TOKEN for the driver"
        )
    text = json.dumps(dict(options))
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, {_METADATA: text})
            for field in schema.fields
        ]
    )


def options_of(given: Mapping[str, str], schema: "StructType") -> dict[str, str]:
    """Return the options of a query: its own, and those of its table that it does not override.

    Raises:
        InvalidArgument: There are no options, as in a table that was created with columns.
    """
    found = _kept(schema) | plain_options(given)
    if not found:
        raise InvalidArgument(
            "there are no options: create a table without columns, as in CREATE TABLE t USING "
            "wings OPTIONS (endpoint '…', topic '…'); Spark keeps none of one with columns"
        )
    return found


def _kept(schema: "StructType") -> dict[str, str]:
    """Return the options carried by the columns of a table; a DataFrame's carry none."""
    found: dict[str, str] = {}
    for field in schema.fields:
        if _METADATA in (field.metadata or {}):
            found = json.loads(field.metadata[_METADATA])
    return found


def tell_of_growth(schema: "StructType", topic_schema: Callable[[], pa.Schema]) -> None:
    """Log the statements that alter a table to have all columns of a topic that has grown.

    Args:
        schema: Columns of the read, from a table of Spark's catalog or not.
        topic_schema: Returns the columns that the topic has now; called for a table alone.
    """
    from wings_spark.types import spark_type

    if not _kept(schema):
        return
    known = {field.name: field.dataType for field in schema.fields}
    changes: list[str] = []
    for field in fields_of(topic_schema()):
        with suppress(InvalidArgument):  # Spark has no type for it.
            found = spark_type(field.type, field.name)
            column, kind = "`{}`".format(field.name.replace("`", "``")), found.simpleString()
            if field.name not in known:
                changes.append(f"ADD COLUMN {column} {kind}")
            elif known[field.name] != found:
                changes.append(f"ALTER COLUMN {column} TYPE {kind}")
    if changes:
        _logger.warning(
            "the topic has grown since the table was created, whose columns are as they were; to "
            "have all: %s",
            "; ".join(f"ALTER TABLE … {change}" for change in changes),
        )


def _one(offsets: Bound | None, timestamp: int | None, default: Bound) -> Bound:
    if timestamp is not None:
        return Bound.at_timestamp(timestamp)
    return offsets or default
