"""A process that parses statements for a server, one after another, until that closes the channel.

DuckDB's parser takes hours for some texts of a hundred characters (it tries all ways to read what
it cannot read), and it heeds no interrupt: here the kernel ends it.
"""

import signal
import socket
import sys
import time

import duckdb

from wings_core.sql_process.channel import Channel
from wings_core.sql_process.memory import bound_memory

CPU_SECONDS_MAX = 5.0
"""Processor time that one text may take; a list of 256 KiB takes one."""

MEMORY_BYTES_MAX = 512 << 20
"""What the process may use beyond what it has at its start."""

_OUT_OF_MEMORY = '{"error":true,"error_type":"out of memory"'


def main(descriptor: int) -> None:
    """Serve one server.

    It ends without an answer where a text takes too much.

    Args:
        descriptor: Of the channel.
    """
    channel = Channel(socket.socket(fileno=descriptor))
    connection = duckdb.connect(":memory:", config={"enable_external_access": "false"})
    connection.execute("SET errors_as_json = true")
    bound_memory(MEMORY_BYTES_MAX)
    while (message := channel.receive()) is not None:
        # At its end comes SIGPROF, whose default action is to terminate.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS_MAX)
        began = time.process_time()
        text = message.body.decode()
        tree, kinds = _parsed(connection, text)
        if tree.startswith(_OUT_OF_MEMORY):
            return  # What is left is in pieces.
        seconds = time.process_time() - began
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.send({"kinds": kinds, "seconds": seconds}, tree.encode())


def _parsed(connection: duckdb.DuckDBPyConnection, text: str) -> tuple[str, list[str]]:
    """Return DuckDB's JSON of a text, and the kinds of its statements where it has none of them."""
    ((tree,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchall()
    if '"error_type":"not implemented"' not in tree[:200]:
        return tree, []
    try:
        return tree, [statement.type.name for statement in connection.extract_statements(text)]
    except ValueError:  # A kind for which DuckDB's Python has no name, such as UPDATE EXTENSIONS.
        return tree, []


if __name__ == "__main__":
    main(int(sys.argv[1]))
