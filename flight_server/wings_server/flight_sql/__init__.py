"""Flight SQL, for ADBC and JDBC drivers, on the port of Flight.

The package itself imports no Protocol Buffers, which a server loads at the first call.
"""

from collections.abc import Mapping

import pyarrow as pa

__all__ = ["ACTIONS", "PREFIX", "is_flight_sql"]

PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
"""Prefix of the names of types in an Any."""

ACTIONS: Mapping[str, str] = {
    "CreatePreparedStatement": "Flight SQL: prepare a statement.",
    "ClosePreparedStatement": "Flight SQL: close a prepared statement.",
    "CancelQuery": "Flight SQL: cancel a query that this process runs.",
}
"""Descriptions of the actions, by name."""

_MARK = PREFIX.encode()


def is_flight_sql(raw: bytes | pa.Buffer | None) -> bool:
    """Return whether a command or ticket is a message of Flight SQL instead of JSON."""
    # After the field's number and length.
    return raw is not None and bytes(memoryview(raw)[:80]).find(_MARK) in (2, 3)
