"""Topics that are Iceberg tables: the table itself, and the union of it and what came since."""

from typing import TYPE_CHECKING, Any, Unpack

from wings_client._admin import AdminCalls, TopicRef, name_of
from wings_client._arguments import build, checked
from wings_client._read_options import SelectKeywords, place
from wings_client._results import ReadResult
from wings_client._scan import plan
from wings_core.contracts.actions import TopicBody
from wings_core.contracts.info import InfoCommand
from wings_core.contracts.reads import ALL
from wings_core.errors import InvalidArgument, TopicNotFound, Unavailable, WingsError
from wings_core.names import TopicName
from wings_core.storage.objects.open import s3_properties

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CATALOG = "wings"
"""The catalog's name, in pyiceberg's own configuration too."""

_TOPIC_UUID = "wings.topic_uuid"


@checked
class TableCalls(AdminCalls):
    """The calls of `Client` on topics that are Iceberg tables."""

    def table(self, topic: TopicRef, *, catalog: "Catalog | None" = None) -> "Table":
        """Return the Iceberg table of a topic, to be read by pyiceberg.

        It is as of the last commit: what came since is in Wings alone; see `snapshot`.

        Args:
            topic: The topic.
            catalog: Pyiceberg's, with the table; None: that of the name `wings` in pyiceberg's own
                configuration. Where that has none, or does not have the table, it is a
                `StaticTable`, which reads the snapshot that there is now.

        Raises:
            TopicNotFound: There is no such topic.
            InvalidArgument: It is no table, no commit was made yet, or pyiceberg is missing.
            Unavailable: The table's metadata cannot be read from here, or the catalog that was
                given does not have it.
        """
        described = self._described_table(topic)
        about: dict[str, Any] | None = described.get("table")
        if about is None:
            topic_id = TopicName.parse(described["topic"]).topic
            raise InvalidArgument(
                f"topic {described['topic']} is no table: "
                + (
                    f"""make it one with `wings topic alter {topic_id} --set 'table="iceberg"'`"""
                    if described["config"]["table"] is None
                    else "the server has no pyiceberg: install wings-flight[server,iceberg] there"
                )
            )
        try:
            from pyiceberg.table import StaticTable
        except ImportError as error:
            raise InvalidArgument(
                f"tables need pyiceberg: pip install 'wings-flight[iceberg]' ({error})"
            ) from None
        location: str | None = about["metadata_location"]
        if location is None:
            raise InvalidArgument(
                f"the table of topic {described['topic']} has no snapshot yet (maintenance makes "
                "one once messages are merged), or the server does not reach its catalog"
            )
        found = _of_catalog(catalog, about["identifier"], described["uuid"])
        if found is not None:
            return found
        try:
            return StaticTable.from_metadata(location, s3_properties())
        except Exception as error:
            raise Unavailable(
                f"the table's metadata cannot be read from here: {location}: "
                f"{type(error).__name__}: {error!s:.300}"
            ) from error

    def snapshot(
        self,
        topic: TopicRef,
        **options: Unpack[SelectKeywords],
    ) -> ReadResult:
        """Read a topic at this moment: what its table has from the files, the rest from the server.

        Each row that is committed now comes once, whatever is merged or committed to the table
        meanwhile, but for what retention takes before it is read. Where there is no table,
        pyiceberg is missing, its files cannot be reached from here, or there is a filter, all comes
        from the server, as from `scan`. Rows of one batch are of one partition or by partition, in
        order of offset; batches come in no order.

        Args:
            topic: The topic.
            options: `columns`: names of the columns to return, in order, instead of all.
                `filter`: a SQL predicate over the topic's columns, evaluated on the server.
                `system_columns=True`: append `__offset` and `__timestamp`; of a topic with a key,
                before them `__partition`, the value's JSON text.

        Raises:
            TopicNotFound: There is no such topic.
            WingsError: Also while the result is read.
        """
        from wings_client._snapshot import SnapshotRead  # Takes pyarrow.compute, slow to import.

        keyed = self.topic(topic if isinstance(topic, str) else topic.name)
        where = place(None, None if keyed.partition_key is None else ALL, "earliest")
        command = build(InfoCommand, "snapshot", topic=keyed.name, **where, **options)
        schema, parts = plan(self._transport, command)
        table = None
        # Of the ranges, any later state of the table has the same rows.
        described = self._described_table(keyed)
        if described["uuid"] != keyed.uuid:
            raise TopicNotFound(f"topic {keyed.name} was deleted")
        if command.filter is None and keyed.config.get("table") is not None:
            try:
                table = self.table(keyed)
            except WingsError:
                table = None
        return ReadResult(
            SnapshotRead(
                self._transport, schema, parts, keyed.uuid, table, filtered=bool(command.filter)
            )
        )

    def _described_table(self, topic: TopicRef) -> dict[str, Any]:
        body = build(TopicBody, "table", topic=name_of(topic))
        return self._act("describe-topic", body)


def _of_catalog(catalog: "Catalog | None", identifier: str, topic_uuid: str) -> "Table | None":
    """Return a table by its catalog; None where that of the configuration does not have it.

    Raises:
        Unavailable: The catalog that was given does not have it, or cannot be reached.
    """
    problem: object = "has no such table"
    try:
        from pyiceberg.catalog import load_catalog

        by = catalog or load_catalog(CATALOG)
        table = by.load_table(tuple(identifier.split(".")))
        if table.properties.get(_TOPIC_UUID) == topic_uuid:
            return table
    except Exception as error:  # noqa: BLE001 - of any catalog; the server says where metadata is.
        problem = f"has no such table: {type(error).__name__}: {error!s:.300}"
    if catalog is not None:
        raise Unavailable(f"table {identifier}: catalog {catalog.name!r:.80} {problem}")
    return None
