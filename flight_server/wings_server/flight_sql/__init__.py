"""Flight SQL, for ADBC and JDBC drivers, on the port of Flight."""

from wings_server.flight_sql.messages import is_flight_sql
from wings_server.flight_sql.service import ACTIONS, FlightSql

__all__ = ["ACTIONS", "FlightSql", "is_flight_sql"]
