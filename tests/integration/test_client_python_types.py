"""Topics from models and data frames, and models and frames pushed to them, at a real server."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pytest
from fix_client import async_in_soak
from pydantic import BaseModel

from wings_client import Client
from wings_core.errors import InvalidArgument, InvalidSchema, SchemaMismatch

pytestmark = async_in_soak


class Place(BaseModel):
    name: str
    floor: int | None = None


class Reading(BaseModel):
    sensor: str
    celsius: float | None
    at: datetime
    place: Place


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
READING = Reading(sensor="roof", celsius=21.5, at=AT, place=Place(name="house"))


def test_a_model_makes_a_topic(wings: Client, new_topic_id: str) -> None:
    topic = wings.create_topic(new_topic_id, Reading, "sensor")
    assert topic.schema.field("sensor") == pa.field("sensor", pa.string(), nullable=False)
    assert topic.schema.field("celsius") == pa.field("celsius", pa.float64())
    assert wings.create_topic(new_topic_id, Reading, "sensor", if_not_exists=True) == topic


def test_a_frame_makes_a_topic_and_goes_in(wings: Client, new_topic_id: str) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"n": [1, 2], "s": ["x", None]})
    topic = wings.create_topic(new_topic_id, frame.schema)
    wings.push(topic, frame)
    assert wings.fetch(topic, offset=0).table.to_pylist() == frame.to_dicts()


def test_python_types_add_columns(wings: Client, new_topic_id: str) -> None:
    topic = wings.create_topic(new_topic_id, {"n": int})
    grown = wings.alter_schema(topic, add={"at": datetime})
    assert grown.schema.field("at") == pa.field("at", pa.timestamp("us", tz="UTC"))


@pytest.mark.parametrize(
    ("schema", "error"), [({"n": complex}, InvalidSchema), (5, InvalidArgument)]
)
def test_what_makes_no_topic_is_named(
    wings: Client, new_topic_id: str, schema: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"field 'n'.*complex|schema: cannot make"):
        wings.create_topic(new_topic_id, schema)


@dataclass
class Point:
    x: int
    y: float | None = None


@dataclass
class Track:
    name: str
    points: list[Point]
    best: Point | None = None


class Pair(NamedTuple):
    key: str
    n: int


@dataclass
class Nested:
    one: Pair
    all: list[Pair]


class Colour(StrEnum):
    RED = "red"


class Everything(BaseModel):
    n: int
    colour: Colour
    kind: Literal["a", "b"]
    price: Decimal
    day: date
    at: datetime
    raw: bytes
    marks: dict[str, int]
    places: tuple[Place, ...]
    track: Track | None = None


EVERYTHING = Everything(
    n=1,
    colour=Colour.RED,
    kind="a",
    price=Decimal("1.25"),
    day=date(2026, 1, 2),
    at=AT,
    raw=b"\x00",
    marks={"x": 1},
    places=(Place(name="house"),),
    track=Track("t", [Point(1)], Point(2, 0.5)),
)


def test_a_model_of_all_kinds_of_fields_comes_back_as_it_was(
    wings: Client, new_topic_id: str
) -> None:
    topic = wings.create_topic(new_topic_id, Everything)
    assert wings.push(topic, EVERYTHING).rows == 1
    assert wings.push(topic, (EVERYTHING for _ in range(3))).rows == 3
    with wings.producer(topic) as producer:
        producer.send(EVERYTHING).result()
        producer.send([EVERYTHING]).result()
        producer.append(EVERYTHING)
        producer.extend([EVERYTHING])
    rows = wings.fetch(topic, offset=0).table.to_pylist(maps_as_pydicts="strict")
    assert len(rows) == 8
    assert all(Everything.model_validate(row) == EVERYTHING for row in rows)


NESTED = Nested(Pair("k", 1), [Pair("l", 2)])


@pytest.mark.parametrize(
    ("given", "row"),
    [
        (Track("t", [Point(1)]), {"name": "t", "points": [{"x": 1, "y": None}], "best": None}),
        (Pair("k", 1), {"key": "k", "n": 1}),
        (NESTED, {"one": {"key": "k", "n": 1}, "all": [{"key": "l", "n": 2}]}),
    ],
)
def test_dataclasses_and_named_tuples_go_in(
    wings: Client, new_topic_id: str, given: object, row: dict[str, object]
) -> None:
    topic = wings.create_topic(new_topic_id, type(given))
    wings.push(topic, given)
    wings.push(topic, [given, given])
    with wings.producer(topic) as producer:
        producer.append(given)
    assert wings.fetch(topic, offset=0).table.to_pylist() == 4 * [row]


def test_frames_of_all_kinds_go_in(wings: Client, new_topic_id: str) -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    topic = wings.create_topic(new_topic_id, {"n": "int64", "s": "string"})
    columns = {"n": [1], "s": ["x"]}
    frame = pl.DataFrame(columns)
    wings.push(topic, pd.DataFrame(columns))
    wings.push(topic, frame)
    wings.push(topic, frame.lazy())
    wings.push(topic, [frame, pd.DataFrame(columns), pa.table(columns)])
    wings.push(topic, {"n": pd.Series([1]), "s": pl.Series(["x"])})
    assert wings.fetch(topic, offset=0).table.to_pylist() == 7 * [{"n": 1, "s": "x"}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("x", "data: cannot push a str: expected a table"),
        (5, "data: cannot push a int"),
        (None, "data: cannot push a NoneType"),
        (Point, "data: cannot push a class Point"),
        ([{"x": 1}, "x"], r"data\[1\]: cannot push a str"),
        ([Point(1), 5], r"data\[1\]: cannot push a int"),
        ({"x": 1}, r"data\['x'\]: expected the values of a column, got a int; push one row"),
        ({"x": "abc"}, r"data\['x'\]: expected the values of a column, got a str"),
        (pa.chunked_array([[1]]), "data: cannot push a ChunkedArray, which has no columns"),
    ],
    ids=str,
)
def test_what_cannot_be_pushed_is_named_with_its_argument(
    wings: Client, new_topic_id: str, data: object, message: str
) -> None:
    topic = wings.create_topic(new_topic_id, Point)
    with pytest.raises(InvalidArgument, match=message):
        wings.push(topic, data)
    with wings.producer(topic) as producer, pytest.raises(InvalidArgument, match=message):
        producer.send(data)


def test_a_field_that_is_no_column_is_named(wings: Client, new_topic_id: str) -> None:
    topic = wings.create_topic(new_topic_id, {"x": int})
    with pytest.raises(SchemaMismatch, match="'y' is not a column"):
        wings.push(topic, Point(1, 2.0))
