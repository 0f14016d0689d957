"""The format of pages: what earlier versions left unsaid, and what a later version says."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from fix_metadata import NOON, SCHEMA, batch_of

from wings_core.errors import Internal
from wings_core.metadata.sqlite import SqliteMetadata
from wings_core.metadata.sqlite.versions import from_10 as sqlite_from_10
from wings_core.model import Location, PageAddress, PageFormat
from wings_core.names import DEFAULT_NAMESPACE
from wings_core.partitions import UNPARTITIONED
from wings_core.protocol.messages import LOCATION
from wings_core.protocol.v1 import offset_registry_pb2 as registry

PLAIN = Location(0, 3, NOON, PageAddress("folio", 8, 64))
MERGED = Location(4, 9, NOON, PageAddress("segment", 8, 64), NOON, PageFormat.SEGMENT)

INLINE_INDEX = "CREATE INDEX pages_inline ON pages (partition_id, end_offset) WHERE format = 3"
AS_BEFORE = "ALTER TABLE pages DROP COLUMN format"
MERGED_BEFORE = "UPDATE pages SET first_timestamp = timestamp WHERE end_offset = 3"
FORMATS = [(3, PageFormat.SEGMENT), (7, PageFormat.PLAIN), (11, PageFormat.PLAIN)]


@pytest.mark.parametrize("location", [PLAIN, MERGED])
def test_a_location_on_the_wire_names_its_format(location: Location) -> None:
    message = LOCATION.encode(location)
    assert message.format == location.format
    assert LOCATION.decode(message) == location


@pytest.mark.parametrize("location", [PLAIN, MERGED])
def test_a_location_of_an_earlier_version_has_the_format_of_its_timestamps(
    location: Location,
) -> None:
    message = LOCATION.encode(location)
    message.ClearField("format")
    assert LOCATION.decode(message) == location


def test_a_location_of_a_later_version_is_an_error_that_names_the_format() -> None:
    message = LOCATION.encode(PLAIN)
    message.format = cast(registry.PageFormat, 99)
    with pytest.raises(Internal, match="format 99"):
        LOCATION.decode(message)


def test_a_migration_of_sqlite_names_the_format_of_every_page(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with SqliteMetadata(path) as metadata:
        topic = metadata.admin.create_topic(DEFAULT_NAMESPACE.topic("orders"), SCHEMA)
        for _ in range(3):
            metadata.registry.commit([batch_of(topic, {UNPARTITIONED: 4})])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        checksum = "ALTER TABLE pages DROP COLUMN checksum"
        before = ("DROP INDEX pages_inline", checksum, AS_BEFORE, MERGED_BEFORE)
        for statement in (*before, *sqlite_from_10.FORMATS, INLINE_INDEX):
            connection.execute(statement)
    with SqliteMetadata(path) as metadata:
        found = metadata.registry.locate(topic.uuid, UNPARTITIONED, 0, 12).locations
    assert [(page.end_offset, page.format) for page in found] == FORMATS
