"""Whether metadata has all that the notes beside it speak of.

SQLite opens without a word where the write-ahead log of metadata is gone, or is cut off between two
transactions: what was committed last is then missing, and nothing in metadata says so.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from wings_core.check.report import Problem
from wings_core.metadata.interfaces import Metadata
from wings_core.metadata.sqlite.notes import MOVED, PUSHED, read_notes

Ends = Mapping[str, Mapping[str, int]]
"""Where partitions ended at least, by the topic's UUID and the partition."""


def noted_ends(path: Path) -> Ends:
    """Return where partitions ended by a file of notes; none of a file that is not there.

    Read before metadata is: a server may be writing both, a note after what it is of.

    Raises:
        OSError: It cannot be read.
    """
    topics: dict[int, str] = {}
    partitions: dict[int, tuple[str, str]] = {}
    ends: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for table, rows in read_notes(path):
        for row in rows:
            if table == "topics":
                topics[row[0]] = row[1]
            elif table == "partitions" and row[1] in topics:
                partitions[row[0]] = topics[row[1]], row[2]  # Numbers are used again.
            elif table in (PUSHED, MOVED) and row[0] in partitions:
                uuid, partition = partitions[row[0]]
                ends[uuid][partition] = max(ends[uuid].get(partition, 0), row[1] + 1)
    return ends


def missing(metadata: Metadata, ends: Ends) -> Iterator[Problem]:
    """Yield partitions that end in metadata before a page that was noted.

    Raises:
        WingsError: Metadata cannot be read.
    """
    for namespace in metadata.admin.list_namespaces():
        for topic in metadata.admin.list_topics(namespace.name):
            noted = ends.get(topic.uuid, {})
            states = metadata.registry.partition_states(topic.uuid) if noted else ()
            known = {str(state.partition): state.next_offset for state in states}
            for partition, end in noted.items():
                start = known.get(partition, 0)
                if start < end:
                    yield Problem(
                        "NOTES speak of them, and metadata does not know them",
                        topic=str(topic.name),
                        partition=partition,
                        start_offset=start,
                        end_offset=end - 1,
                    )
