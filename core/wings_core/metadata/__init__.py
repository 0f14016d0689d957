"""Metadata: topics by name, and the log's index of offsets.

Read the Protocols in `interfaces` first, then `judge` (what becomes of a batch, whatever the
store), `waiters` (who hears of commits), `sqlite` (the embedded store; the order of its locks is in
`sqlite.store`) and `postgres` (the store of several nodes; the order of its locks is in
`postgres.locks`).
"""
