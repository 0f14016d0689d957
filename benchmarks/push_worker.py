"""A producer in a process of its own: pushes one row at a time, by plain Flight.

    python -m benchmarks.push_worker

Reads `ADDRESS TOPIC PUSHES` from its input, says `ready` once its stream is open, pushes after
another line, and says `done` when all are acknowledged; and so on until its input ends.
"""

import sys
from contextlib import closing

import pyarrow.flight as flight

from benchmarks.small import Stream, people


def main() -> None:
    """Push what is asked for, line by line."""
    batch = people(1)
    for line in sys.stdin:
        address, topic, pushes = line.split()
        with (
            flight.FlightClient(address) as client,
            closing(Stream(client, flight.FlightDescriptor.for_path(topic), batch)) as stream,
        ):
            stream.push_one()
            print("ready", flush=True)  # noqa: T201
            sys.stdin.readline()
            stream.push(int(pushes))
            print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
