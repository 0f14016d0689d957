"""Metadata: topics by name, and the log's index of offsets.

Read the Protocols in `interfaces` first, then `judge` (accepts or rejects a batch, whatever the
store), `waiters` (woken by commits), `store` (the interfaces over a database), and the two
databases: `sqlite` (embedded; the order of its locks is in `sqlite.store`) and `postgres` (of
several nodes; the order of its locks is in `store.database.Lock`).
"""
