"""The processes in which statements run that may take memory which DuckDB does not count.

Nothing here imports the rest of the server: such a process knows DuckDB, Arrow, and a socket.
"""
