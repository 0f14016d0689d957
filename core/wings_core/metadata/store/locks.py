"""The order in which the transactions of all nodes take locks in PostgreSQL.

    1. the writer of a publish, abort or flush      advisory, by a hash of its name
    2. shards                                       rows, by source and id
    3. topics: deletion exclusive, all else shared  advisory, by a hash of the UUID
       then the topic changed or given a group      rows, one
       then its groups                              rows, by id
    4. ids of stages that a commit may begin        advisory, by a hash of the id
    5. stages                                       rows, by name
    6. producers, numbers of rows, then partitions: first those that are new are inserted, then all
       are locked                                   rows, by topic and name or value
    7. folios                                       rows, by name
    8. a consumer group: changes exclusive, commits of offsets shared
                                                    rows, by name; then its members
    9. leases                                       rows, by name

Purges, and changes of the tables of nodes and of tokens, keep others of their kind out by an
advisory lock, and take it first. Within each, a transaction takes what it needs in ascending order.
So no two transactions wait for each other, but by way of an insert that PostgreSQL makes wait for
reasons of its own; such a deadlock is broken after a second, and the transaction tried again.

Advisory locks come in a bounded number of buckets, since the server's table of them is bounded, and
they are served in the order of asking: the deletion of a topic is not starved by its commits.

SQLite has one writer at a time, and takes none of them.
"""

import zlib
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache

BUCKETS = 256
"""Advisory locks of a kind: names whose hashes agree wait for each other."""

BUCKETS_KEPT_MAX = 1_024
"""Names whose bucket is remembered."""


class Lock(IntEnum):
    """The kinds of advisory locks; the numbers are far from what others would choose."""

    MIGRATIONS = 0x57_49_4E_01
    WRITERS = 0x57_49_4E_02
    TOPICS = 0x57_49_4E_03
    STAGES = 0x57_49_4E_04
    PURGE = 0x57_49_4E_05
    NODES = 0x57_49_4E_06
    TOKENS = 0x57_49_4E_07


@lru_cache(BUCKETS_KEPT_MAX)
def bucket(name: str) -> int:
    """Return the bucket of a name."""
    return zlib.crc32(name.encode()) % BUCKETS


def buckets(names: Iterable[str]) -> list[int]:
    """Return the buckets of names, each once, in ascending order."""
    return sorted(set(map(bucket, names)))
