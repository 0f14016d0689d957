"""Check what the journal of metadata has and its tables lack; see `metadata.sqlite.journal`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from wings_core.metadata.sqlite.integrity import open_to_check
from wings_core.model import Location, PageAddress, PageFormat
from wings_core.partitions import Partition


@dataclass(frozen=True, slots=True)
class Journal:
    """The rows of a journal, which the log is to go on with."""

    pages: Mapping[tuple[str, Partition], Sequence[Location]] = field(default_factory=dict)
    """By topic UUID and partition, in the order in which they were pushed."""
    data: Mapping[str, bytes] = field(default_factory=dict)
    """By folio."""
    strays: Sequence[str] = ()
    """Folios whose partition is not there."""


def read_journal(path: Path) -> Journal:
    """Return the journal of a database of metadata of this version, as it is at one moment.

    Raises:
        sqlite3.Error: It cannot be read.
    """
    pages: defaultdict[tuple[str, Partition], list[Location]] = defaultdict(list)
    data: dict[str, bytes] = {}
    strays: list[str] = []
    with closing(open_to_check(path)) as connection:
        rows = connection.execute(
            "SELECT topics.uuid, partitions.value, folio, data, start_offset, end_offset, "
            "timestamp, schema_version FROM journal "
            "LEFT JOIN partitions ON partitions.id = partition_id "
            "LEFT JOIN topics ON topics.id = topic_id ORDER BY journal.id"
        )
        for uuid, partition, folio, page, start_offset, end_offset, timestamp, version in rows:
            data[folio] = page
            address = PageAddress(folio, 0, len(page))
            if uuid is None:
                strays.append(folio)
                continue
            pages[uuid, partition].append(
                Location(
                    start_offset,
                    end_offset,
                    timestamp,
                    address,
                    format=PageFormat.INLINE,
                    schema_version=version,
                )
            )
    return Journal(pages, data, strays)
