"""The Python client of Wings.

A Wings server speaks plain Arrow Flight, so `pyarrow.flight` alone can push and fetch. What the
server refuses carries JSON in the error's `extra_info`; `error_from_json` turns it back into the
error that the server raised:

    try:
        client.do_get(ticket)
    except pyarrow.flight.FlightError as error:
        raise error_from_json(json.loads(error.extra_info)) from error
"""

from wings_core.errors import WingsError, error_from_json

__all__ = ["WingsError", "error_from_json"]
