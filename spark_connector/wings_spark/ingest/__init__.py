"""Ingest: the pipeline that turns files told of by a queue into messages, on Spark.

    driver: claim, journal ─▶ tasks: read_file, stage ─▶ driver: publish, acknowledge

`settings` is what a user writes, `run` starts the query, `status` tells of it. The parts of the
pipeline share what is pickled, the journal and the server, and nothing else.
"""
