"""Ingest: the pipeline that turns files that a queue announces into messages, on Spark.

    driver: claim, journal ─▶ tasks: read_file, stage ─▶ driver: publish, acknowledge

`settings` is the source's TOML, `run` starts the query, `status` reports on it. The parts of the
pipeline share pickled objects, the journal and the server, and nothing else.
"""
