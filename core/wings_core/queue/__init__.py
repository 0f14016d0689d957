"""Queue sources: files that a queue tells of become messages, each exactly once.

    queue ─▶ notices ─▶ coordinator ─▶ claim ─▶ readers stage ─▶ commit: publish, acknowledge
             (files)    local state    journal                   (stages and shards in one
                        shared state                              transaction)

Read `interfaces` first (what a queue is), then `local_state` (what this pipeline knows of its
messages), `shared_state` (what all pipelines know of the files), `coordinator` (who ties them) and
`commit`. Nothing here reads a file: that is done by whoever carries out the claims.
"""
