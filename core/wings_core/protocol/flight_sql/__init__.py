"""The messages of Flight SQL, as `make protocol` generates them.

`flight_sql.proto` is format/FlightSql.proto of https://github.com/apache/arrow, as it is there.
"""
