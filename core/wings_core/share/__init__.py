"""Share groups: a queue over the log, each message held by one worker at a time.

Read `model` first, then `interfaces` (what a replica, a coordinator and the dead letters offer each
other and the server), then down the path of a call:

    coordinator   threads that wait, the log's bounds
    core          procedures: hand out, settle
    partition     the states of one partition's messages, as this coordinator sees them
    quorum        a majority of replicas; `votes` puts their answers together
    steps, links  what procedures wait for, and who does it
    replica       holds in memory; `replica_partition` is one partition, `store` what is durable

Locks: `Coordinator._lock`, `CoordinatorCore._lock` and `Replica._lock` are never held together; the
replica's alone is held during a write to disk.
"""
