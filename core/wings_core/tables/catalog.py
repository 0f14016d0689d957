"""Iceberg tables through pyiceberg: opens catalogs, creates, evolves and commits tables.

All access to a catalog is here: pyiceberg's SQL catalog, or a REST catalog.
"""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

import pyarrow as pa

from wings_core.errors import Internal, InvalidArgument, Unavailable, WingsError
from wings_core.model import Topic
from wings_core.partitions import Partition, partition_key_value
from wings_core.storage.objects import ObjectStore
from wings_core.storage.objects.open import s3_properties
from wings_core.storage.parquet_file import OFFSET_COLUMN, TIMESTAMP_COLUMN, file_fields
from wings_core.storage.table_layout import transforms_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow.parquet as pq

COMMIT = "wings.commit"
"""Property of a snapshot's summary: the number of the commit."""

TOPIC_UUID = "wings.topic_uuid"
"""Property of a table: the UUID of its topic."""

SNAPSHOTS_KEPT_SECONDS = 1_800.0
"""Age at which snapshots expire. Shorter than the time unreferenced segments are kept, and longer
than a commit takes, during which nothing refers to its metadata."""

_PROPERTIES = {
    "format-version": "2",
    # After another node's commit the same files must not be added again.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.parquet.compression-codec": "zstd",
}


@dataclass(frozen=True, slots=True)
class FileToAdd:
    """A segment to add to a table as a file."""

    path: str
    """URL of the file."""
    size: int
    metadata: "pq.FileMetaData"
    topic: Topic
    """The topic, at the schema version of the file."""


class ConflictError(Exception):
    """Another node committed meanwhile."""


class Catalog:
    """The tables of one catalog; methods block without a bound of their own.

    All methods raise:
        Unavailable: The catalog or its storage fails or cannot be reached; the outcome of the
            operation is unknown. The fact `away` says whether the catalog was not reached.

    Args:
        open_: Opens pyiceberg's catalog.
        warehouse: URL prefix of the tables.
    """

    def __init__(self, open_: Callable[[], Any], warehouse: str) -> None:
        self._open = open_
        self._opening = threading.Lock()
        """Held while the catalog is opened, which takes a call; a leaf lock."""
        self._opened: Any = None
        self.warehouse = warehouse.rstrip("/")

    @property
    def catalog(self) -> Any:
        """The catalog of pyiceberg, opened on first use."""
        if self._opened is None:
            with self._opening:
                if self._opened is None:
                    self._opened = self._open()
        return self._opened

    def close(self) -> None:
        """Close the catalog; calls in progress fail."""
        if self._opened is not None:
            self._opened.close()

    def table(self, topic: Topic) -> Any:
        """Return the table of a topic; creates it, and evolves its schema to the topic's.

        A table of another topic of the same name is dropped.
        """
        from pyiceberg.exceptions import NoSuchTableError

        with _errors("find the table"):
            identifier = identifier_of(topic)
            try:
                table = self.catalog.load_table(identifier)
            except NoSuchTableError:
                return _evolved(self._create(topic), topic)
            if table.properties.get(TOPIC_UUID) != topic.uuid:
                if TOPIC_UUID not in table.properties:
                    raise InvalidArgument(
                        f"the catalog has a table {'.'.join(identifier)} that belongs to no topic"
                    )
                self.catalog.drop_table(identifier)
                table = self._create(topic)
            return _evolved(table, topic)

    def find(self, topic: Topic) -> Any | None:
        """Return the table of a topic unchanged; None if there is none."""
        from pyiceberg.exceptions import NoSuchTableError

        with _errors("find the table"):
            try:
                table = self.catalog.load_table(identifier_of(topic))
            except NoSuchTableError:
                return None
            return table if table.properties.get(TOPIC_UUID) == topic.uuid else None

    def _create(self, topic: Topic) -> Any:
        identifier = identifier_of(topic)
        for depth in range(1, len(identifier)):
            self.catalog.create_namespace_if_not_exists(identifier[:depth])
        first = topic.at(1)
        schema = iceberg_schema(first)
        # A location of its own, apart from the metadata of an earlier table of the same name.
        return self.catalog.create_table(
            identifier,
            schema=schema,
            partition_spec=_partition_spec(topic, schema),
            sort_order=_sort_order(schema),
            location=f"{self.warehouse}/{directory_of(topic.uuid)}",
            properties={**_PROPERTIES, TOPIC_UUID: topic.uuid},
        )

    def drop(self, identifier: str, topic_uuid: str) -> None:
        """Drop the table of a deleted topic, if it exists and still belongs to that topic."""
        from pyiceberg.exceptions import NoSuchTableError

        with _errors("drop the table"):
            try:
                table = self.catalog.load_table(tuple(identifier.split(".")))
            except NoSuchTableError:
                return
            if table.properties.get(TOPIC_UUID) == topic_uuid:
                self.catalog.drop_table(tuple(identifier.split(".")))

    def commit(
        self, table: Any, number: int, add: Sequence[FileToAdd], remove: Sequence[str]
    ) -> None:
        """Add and remove files in one snapshot.

        Args:
            table: The table as loaded when this commit was found not to be made yet.
            number: Number of the commit.
            add: Files to add; none is in the table.
            remove: URLs of the table's files to remove.

        Raises:
            ConflictError: The table has changed since.
        """
        from pyiceberg.exceptions import CommitFailedException

        with _errors("commit to the table"):
            try:
                gone = [_file for _file in _files(table) if _file.file_path in set(remove)]
                with table.transaction() as transaction:
                    update = transaction.update_snapshot(snapshot_properties={COMMIT: str(number)})
                    producer = update.overwrite() if gone or not add else update.merge_append()
                    # A gateway that retries a request answers with a conflict although the commit
                    # succeeded; pyiceberg would then delete metadata that the table uses. See
                    # `unused_metadata`.
                    producer._clean_all_uncommitted = _keep
                    with producer as snapshot:
                        for each in add:
                            snapshot.append_data_file(_data_file(table, each))
                        for each in gone:
                            snapshot.delete_data_file(each)
            except CommitFailedException as error:
                raise ConflictError(str(error)) from None

    def expire(self, table: Any) -> bool:
        """Expire old snapshots; returns whether there were any."""
        with _errors("expire snapshots of the table"):
            before = datetime.now(UTC) - timedelta(seconds=SNAPSHOTS_KEPT_SECONDS)
            current = table.current_snapshot()
            old = [
                snapshot.snapshot_id
                for snapshot in table.snapshots()
                if snapshot.timestamp_ms < before.timestamp() * 1_000 and snapshot != current
            ]
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()
                table.refresh()
            return bool(old)


def directory_of(topic_uuid: str) -> str:
    """Return the directory of a table's metadata, relative to the warehouse."""
    return f"tables/{topic_uuid}"


def _keep() -> None:
    pass


def identifier_of(topic: Topic) -> tuple[str, ...]:
    """Return the identifier of a topic's table: tenant (unless default), namespace, topic."""
    name = topic.name
    names = (name.namespace.namespace, name.topic)
    return names if name.namespace.tenant == "default" else (name.namespace.tenant, *names)


def commit_of(table: Any) -> int:
    """Return the number of the last commit, 0 for none; other writers' snapshots are skipped."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        number = (snapshot.summary or {}).get(COMMIT)
        if number is not None:
            return int(number)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return 0


def paths_of(table: Any) -> set[str]:
    """Return the URLs of a table's files."""
    with _errors("list the files of the table"):
        return {each.file_path for each in _files(table)}


def iceberg_schema(topic: Topic) -> Any:
    """Return a topic's schema as an Iceberg schema, with the field ids of its files."""
    from pyiceberg.io.pyarrow import pyarrow_to_schema

    return pyarrow_to_schema(pa.schema(file_fields(topic)))


def _evolved(table: Any, topic: Topic) -> Any:
    """Evolve a table to a topic's schema, version by version, the order in which ids are given."""
    for version in range(1, topic.schema_version + 1):
        wanted = iceberg_schema(topic.at(version))
        known = {field.name: field for field in table.schema().fields}
        changes = [field for field in wanted.fields if _differs(field, known.get(field.name))]
        if not changes:
            continue
        with table.update_schema() as update:
            for field in changes:
                if field.name not in known:
                    update.add_column((field.name,), field.field_type)
                    continue
                if str(field.field_type) != str(known[field.name].field_type):
                    update.update_column((field.name,), field.field_type)
                if known[field.name].required and not field.required:
                    update.update_column((field.name,), required=False)
        table.refresh()
    ids = {field.name: field.field_id for field in table.schema().fields}
    expected = {field.name: field.field_id for field in iceberg_schema(topic).fields}
    if ids != expected:
        raise Internal(f"the table of {topic.name} has different field ids from its files: {ids}")
    return table


def _differs(field: Any, known: Any) -> bool:
    """Return whether a field is missing or narrower; a table may have a later schema version."""
    if known is None:
        return True
    if known.required and not field.required:
        return True
    return str(known.field_type) != str(field.field_type) and _is_wider(field, known)


def _is_wider(field: Any, known: Any) -> bool:
    pair = (str(known.field_type), str(field.field_type))
    if pair in {("int", "long"), ("float", "double")}:
        return True
    precision = getattr(known.field_type, "precision", None)
    return precision is not None and precision < getattr(field.field_type, "precision", 0)


def _partition_spec(topic: Topic, schema: Any) -> Any:
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(each.column).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=parse_transform(str(each)),
                # Engines expect an identity transform to have its column's name.
                name=each.column if each.name == "identity" else f"{each.column}_{each.name}",
            )
            for number, each in enumerate(transforms_of(topic))
        )
    )


def _sort_order(schema: Any) -> Any:
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    return SortOrder(
        SortField(
            source_id=schema.find_field(OFFSET_COLUMN).field_id,
            transform=IdentityTransform(),
            direction=SortDirection.ASC,
            null_order=NullOrder.NULLS_LAST,
        )
    )


def _partition_values(table: Any, file: FileToAdd) -> list[Any]:
    """Return the value of each partition transform, the same for all rows of the file."""
    schema = table.schema()
    values: list[Any] = []
    for field in table.spec().fields:
        source = schema.find_field(field.source_id)
        value = (
            _first_timestamp(file.metadata)
            if source.name == TIMESTAMP_COLUMN
            else _key_of(file, source.name)
        )
        values.append(field.transform.transform(source.field_type)(value))
    return values


def _first_timestamp(metadata: "pq.FileMetaData") -> int:
    """Return the first timestamp of a file, in microseconds since the epoch."""
    columns = metadata.row_group(0)
    number = next(
        at
        for at in range(columns.num_columns)
        if columns.column(at).path_in_schema == TIMESTAMP_COLUMN
    )
    statistics = columns.column(number).statistics
    assert statistics is not None
    return cast("int", statistics.min_raw)


def _key_of(file: FileToAdd, column: str) -> Any:
    partition = Partition((file.metadata.metadata or {})[b"wings.partition"].decode())
    return partition_key_value(partition, file.topic.schema.field(column).type)


def _data_file(table: Any, file: FileToAdd) -> Any:
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = iceberg_schema(file.topic)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.metadata,
        stats_columns=compute_statistics_plan(schema, table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*_partition_values(table, file)),
        file_size_in_bytes=file.size,
        sort_order_id=table.metadata.default_sort_order_id or None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _files(table: Any) -> "Iterable[Any]":
    return [task.file for task in table.scan().plan_files()]


def unused_metadata(table: Any, topic: Topic, objects: ObjectStore) -> list[str]:
    """Return the names of a table's unused metadata files, which may be deleted.

    They belong to expired snapshots and failed commits.
    """
    kept = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    before = time.time() - SNAPSHOTS_KEPT_SECONDS
    listed = list(objects.list(directory_of(topic.uuid)))
    with _errors("list the metadata of the table"):
        for snapshot in table.snapshots():
            kept.add(snapshot.manifest_list)
            kept |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
    base = objects.url.rstrip("/")
    old = (each.name for each in listed if each.modified_at < before)
    return [name for name in old if f"{base}/{name}" not in kept]


@contextmanager
def _errors(what: str) -> Generator[None]:
    """Translate the exceptions of pyiceberg, its file systems and its databases."""
    try:
        yield
    except (WingsError, ConflictError, AssertionError):
        raise
    except Exception as error:
        problem = f"could not {what}: {type(error).__name__}: {error!s:.300}"
        raise Unavailable(problem, away=_is_away(error)) from error


def _is_away(error: Exception) -> bool:
    """Return whether the catalog itself was not reached, so that all its tables are away."""
    from requests import RequestException

    # By name: SQLAlchemy is not installed for a REST catalog alone.
    return isinstance(error, RequestException) or type(error).__name__ == "OperationalError"


NAME = "wings"
"""The name of the catalog."""

CONNECT_SECONDS_MAX = 5.0
"""Timeout for connecting to a REST catalog."""

ANSWER_SECONDS_MAX = 30.0
"""Timeout for a REST catalog's response, and for each further read of it."""


def open_catalog(
    warehouse: str,
    *,
    sqlite: Path | None = None,
    postgres: str | None = None,
    rest: str | None = None,
) -> Catalog | None:
    """Return the catalog of a log; None if pyiceberg is not installed.

    It is opened on first use: importing pyiceberg takes longer than the rest of a start.

    Args:
        warehouse: URL of the store of merged segments.
        sqlite: File of pyiceberg's SQL catalog.
        postgres: URL of a PostgreSQL database for the SQL catalog, instead of `sqlite`.
        rest: URL of a REST catalog, instead of either.
    """
    if find_spec("pyiceberg") is None:
        return None
    options = {"warehouse": warehouse, **s3_properties()}
    if rest is not None:
        options |= {"type": "rest", "uri": rest}
        return Catalog(partial(_open_rest, options), warehouse)
    if postgres is not None:
        from psycopg.conninfo import conninfo_to_dict

        from wings_core.metadata.postgres.connections import CONNECTION_DEFAULTS

        # Passed as parameters to psycopg: all of libpq's options work, several hosts included.
        parameters = {**CONNECTION_DEFAULTS, **conninfo_to_dict(postgres)}
        options |= {
            "type": "sql",
            "uri": f"postgresql+psycopg://?{urlencode(parameters)}",
            "pool_pre_ping": "true",
        }
    else:
        options |= {"type": "sql", "uri": f"sqlite:///{sqlite}"}
    return Catalog(partial(_open_sql, options), warehouse)


def _open_sql(options: dict[str, str]) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(NAME, **options)


def _open_rest(options: dict[str, str]) -> Any:
    """Open a REST catalog with timeouts, which pyiceberg lacks."""
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.utils.config import Config, merge_config
    from requests import Session
    from requests.adapters import HTTPAdapter

    class BoundedAdapter(HTTPAdapter):
        def send(self, *args: Any, **kwargs: Any) -> Any:
            kwargs["timeout"] = (CONNECT_SECONDS_MAX, ANSWER_SECONDS_MAX)
            return super().send(*args, **kwargs)

    class BoundedCatalog(RestCatalog):
        def _config_headers(self, session: Session) -> None:
            # Called first with the new session, so that requests of the constructor have timeouts
            # too.
            for scheme in ("http://", "https://"):
                session.mount(scheme, BoundedAdapter())
            super()._config_headers(session)

    configured: Any = merge_config(Config().get_catalog_config(NAME) or {}, {**options})
    return BoundedCatalog(NAME, **configured)
