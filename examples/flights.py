"""Believable flight records, made up with a fixed seed: the data of the demo and of benchmarks.

The shape is that of the U.S. on-time performance records: when, how late (minutes), how far
(miles), from where, to where.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema(
    [
        pa.field("date", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("delay", pa.int32()),
        pa.field("distance", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("destination", pa.string(), nullable=False),
    ]
)

# Airports with their share of departures (per mille) and a place on a flat map, in miles.
_AIRPORTS = {
    "ATL": (150, 2000, 500), "BOS": (40, 2600, 1250), "DEN": (85, 950, 950),
    "DFW": (110, 1200, 400), "DTW": (50, 1900, 1150), "HNL": (20, -2400, 100),
    "IAH": (60, 1300, 150), "JFK": (45, 2500, 1100), "LAS": (60, 300, 700),
    "LAX": (95, 100, 550), "MCO": (50, 2250, 150), "MSP": (50, 1400, 1250),
    "ORD": (120, 1650, 1050), "PHX": (55, 400, 500), "SEA": (40, 100, 1500),
    "SFO": (50, 0, 850), "SLC": (30, 550, 950), "STL": (30, 1600, 800),
}  # fmt: skip
_FIRST_DAY_US = 978_307_200_000_000  # 2001-01-01T00:00:00Z
_DAY_US = 86_400_000_000


def generate(rows: int, *, seed: int = 2001, batch_rows: int = 65_536) -> Iterator[pa.RecordBatch]:
    """Yield `rows` flights in order of departure, in batches of `batch_rows`.

    The same arguments always give the same flights.
    """
    for start in range(0, rows, batch_rows):
        count = min(batch_rows, rows - start)
        yield _batch(start, count, rows, seed + start)


def _batch(start: int, count: int, rows: int, seed: int) -> pa.RecordBatch:
    names = pa.array(list(_AIRPORTS))
    origin = _choose(count, seed)
    # Never from an airport to itself: step on from the origin by one to all but one.
    step = pc.add(pc.floor(pc.multiply(_uniform(count, seed + 1), len(_AIRPORTS) - 1)), 1)
    destination = _modulo(pc.add(origin, step.cast(pa.int64())), len(_AIRPORTS))
    # Most flights leave on time or early, a few much too late; one in fifty has no record.
    lateness = pc.multiply(pc.ln(pc.add(_uniform(count, seed + 2), 1e-9)), -14.0)
    delay = pc.subtract(pc.round(lateness), 9.0).cast(pa.int32())
    recorded = pc.less(_uniform(count, seed + 3), pa.scalar(0.98))
    day_us = 365 * _DAY_US * start // rows
    gap_us = 365 * _DAY_US // rows
    number = pa.arange(0, count)  # pyright: ignore[reportAttributeAccessIssue] - not in the stubs
    date = pc.add(pc.multiply(number, gap_us), _FIRST_DAY_US + day_us)
    return pa.RecordBatch.from_arrays(
        [
            date.cast(SCHEMA.field("date").type),
            pc.if_else(recorded, delay, pa.scalar(None, pa.int32())),
            _distance(origin, destination),
            names.take(origin),
            names.take(destination),
        ],
        schema=SCHEMA,
    )


def _uniform(count: int, seed: int) -> pa.DoubleArray:
    return pc.random(count, initializer=seed)


def _choose(count: int, seed: int) -> "pa.Array[Any]":
    """Choose airports by their shares of departures."""
    ticket = pc.multiply(_uniform(count, seed), float(sum(a[0] for a in _AIRPORTS.values())))
    chosen = pa.repeat(pa.scalar(0, pa.int64()), count)
    bound = 0
    for share, _, _ in list(_AIRPORTS.values())[:-1]:
        bound += share
        past = pc.greater_equal(ticket, pa.scalar(float(bound)))
        chosen = pc.add(chosen, past.cast(pa.int64()))
    return chosen


def _modulo(values: "pa.Array[Any]", divisor: int) -> "pa.Array[Any]":
    return pc.subtract(values, pc.multiply(pc.divide(values, divisor), divisor))


def _distance(origin: "pa.Array[Any]", destination: "pa.Array[Any]") -> "pa.Array[Any]":
    """Return the flat distance between airports, in miles."""
    squares: list[pa.Array[Any]] = []
    for axis in (1, 2):
        places = pa.array([float(airport[axis]) for airport in _AIRPORTS.values()])
        apart = pc.subtract(places.take(origin), places.take(destination))
        squares.append(pc.multiply(apart, apart))
    miles: Any = pc.sqrt(pc.add(squares[0], squares[1]))
    return pc.round(miles).cast(pa.int32())
