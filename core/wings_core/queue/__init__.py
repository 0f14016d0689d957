"""Queue sources: files that a queue announces become messages, each exactly once.

    queue ─▶ notifications ─▶ coordinator ─▶ claim ─▶ readers stage ─▶ commit: publish, acknowledge
             (files)          local state    journal                   (stages and shards in one
                              shared state                              transaction)

Read `interfaces` first (the contract of a queue), then `state` (one pipeline's view of its
messages, and the files as all pipelines see them), `coordinator` (which combines them) and
`commit`. Nothing here reads a file: the readers of `wings_spark.ingest` do.
"""
