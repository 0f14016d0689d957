"""Processes that run SQL statements, isolated since DuckDB does not count all memory it takes.

Nothing here imports the rest of the server: such a process has DuckDB, Arrow, and a socket.
"""
