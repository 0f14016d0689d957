"""Share groups: a queue over the log, each message held by one worker at a time.

Read `model` first, then down the path of an acquire:

    shares        the groups of a log, as the server and its clients meet them
    coordinator/  waits and threads (`coordinator`); which partitions may have messages
                  (`partitions`); pick, hold, hand out (`lease`); acknowledge (`settle`)
    state/        the states of one partition's messages, as this coordinator sees them
    quorum/       procedures over a majority of the replicas, and what carries them out
    replica/      holds in memory, tombstones and counts in a store: SQLite or PostgreSQL
    remote/       replicas in other processes, over gRPC

Beside the path: `delivery/` reads the rows of leased ranges, `dead_letters/` writes and redrives
what a group rejects, and `open` puts a coordinator together from its parts.

Locks: `Coordinator._lock` is taken before `PartitionTable.lock` and `Followers._lock`; none of them
is held together with `Replica._lock`, which alone is held during a write to disk.
"""
