"""The format of pages: what earlier versions left unsaid, and what a later version says."""

from typing import cast

import pytest
from fix_metadata import NOON

from wings_core.errors import Internal
from wings_core.model import Location, PageAddress, PageFormat
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
