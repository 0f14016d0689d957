"""Rows of a topic as instances of the class that it was made of."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field
from tables import each

from wings_client._batches import Cut, to_batches
from wings_client._schemas import schema_of
from wings_client._worker_rows import reader_of
from wings_core.errors import InvalidArgument, InvalidSchema, SchemaMismatch


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Place(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    name: str = Field(alias="placeName")
    floors: dict[int, list[Colour]] = {}


@dataclass
class Step:
    level: Level
    notes: dict[str, str | None]
    where: Place | None = None


class Strict(BaseModel):
    """Every type of a field, refused by pydantic in their columns' form unless it is lax."""

    model_config = ConfigDict(strict=True, extra="forbid")

    number: int = Field(alias="theNumber")
    ratio: float
    text: str
    raw: bytes
    flag: bool
    at: datetime
    day: date
    clock: time
    length: timedelta
    price: Decimal
    cents: Annotated[Decimal, Field(max_digits=10, decimal_places=2)]
    small: Annotated[int, pa.int16()]
    kind: Literal["a", "b"]
    colour: Colour | None
    level: Level
    numbers: list[int]
    pair: tuple[str, ...]
    tags: dict[str, str]
    key: UUID
    keys: dict[UUID, list[UUID]]
    named: Annotated[UUID | None, pa.string()]
    deep: dict[str, dict[Colour, list[Place]]]
    place: Place
    steps: list[Step]

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.small


@dataclass
class Plain:
    number: int
    tags: dict[str, int | None]
    pair: tuple[int, ...]
    place: Place | None
    steps: dict[str, Step]
    key: UUID
    colour: Colour = Colour.RED


class Named(NamedTuple):
    number: int
    tags: dict[str, Place]
    keys: list[UUID]


INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis adds the zone.
COLOURS = st.sampled_from(Colour)
FLOORS = st.dictionaries(INTS, st.lists(COLOURS, max_size=2), max_size=2)
PLACES = st.builds(Place, placeName=TEXTS, floors=FLOORS)
STEPS = st.builds(
    Step,
    level=st.sampled_from(Level),
    notes=st.dictionaries(TEXTS, st.none() | TEXTS, max_size=2),
    where=st.none() | PLACES,
)
STRICT = st.builds(
    Strict,
    theNumber=INTS,
    ratio=st.floats(allow_nan=False),
    text=TEXTS,
    raw=st.binary(max_size=8),
    flag=st.booleans(),
    at=MOMENTS,
    day=st.dates(),
    clock=st.times(),
    length=st.timedeltas(timedelta(days=-100_000), timedelta(days=100_000)),
    price=st.decimals(-(10**9), 10**9, places=9),
    cents=st.decimals(-(10**7), 10**7, places=2),
    small=st.integers(-(2**15), 2**15 - 1),
    kind=st.sampled_from(["a", "b"]),
    colour=st.none() | COLOURS,
    level=st.sampled_from(Level),
    numbers=st.lists(INTS, max_size=3),
    pair=st.lists(TEXTS, max_size=3).map(tuple),
    tags=st.dictionaries(TEXTS, TEXTS, max_size=3),
    key=st.uuids(),
    keys=st.dictionaries(st.uuids(), st.lists(st.uuids(), max_size=2), max_size=2),
    named=st.none() | st.uuids(),
    deep=st.dictionaries(
        TEXTS, st.dictionaries(COLOURS, st.lists(PLACES, max_size=2), max_size=2), max_size=2
    ),
    place=PLACES,
    steps=st.lists(STEPS, max_size=2),
)
PLAIN = st.builds(
    Plain,
    number=INTS,
    tags=st.dictionaries(TEXTS, st.none() | INTS, max_size=3),
    pair=st.lists(INTS, max_size=3).map(tuple),
    place=st.none() | PLACES,
    steps=st.dictionaries(TEXTS, STEPS, max_size=2),
    key=st.uuids(),
    colour=COLOURS,
)
NAMED = st.builds(
    Named,
    number=INTS,
    tags=st.dictionaries(TEXTS, PLACES, max_size=2),
    keys=st.lists(st.uuids(), max_size=2),
)


def batch_of(rows: Any, schema: Any = None) -> Any:
    (batch,) = to_batches(rows, schema or schema_of(type(rows)), Cut())
    return batch


@given(STRICT | PLAIN | NAMED)
def test_what_is_pushed_comes_back_equal(row: Any) -> None:
    again = reader_of(type(row))(batch_of(row))
    assert type(again) is type(row)
    assert again == row


def test_uuids_and_models_in_mappings_are_pushed_too() -> None:
    key, place = uuid4(), Place(placeName="attic")
    schema = schema_of({"key": UUID, "keys": list[UUID], "place": Place | None})
    rows = [{"key": key, "keys": [key], "place": place}, {"key": str(key), "keys": []}]
    assert batch_of(rows, schema).to_pylist(maps_as_pydicts="strict") == [
        {"key": str(key), "keys": [str(key)], "place": {"name": "attic", "floors": {}}},
        {"key": str(key), "keys": [], "place": None},
    ]
    with pytest.raises(SchemaMismatch, match="'key'"):
        batch_of([{"key": 7, "keys": []}], schema)


def test_columns_named_by_aliases_are_found_too() -> None:
    schema = pa.schema([("placeName", pa.string()), ("floors", schema_of(Place).field(1).type)])
    batch = batch_of([{"placeName": "attic", "floors": {1: []}}], schema)
    assert reader_of(Place)(batch) == Place(placeName="attic", floors={1: []})


def test_an_alias_that_another_field_has_as_its_name_is_not_used() -> None:
    class Crossed(BaseModel):
        a: int = Field(alias="b")
        b: int = Field(alias="a")

    row = Crossed(a=2, b=1)
    assert (row.a, row.b) == (1, 2)
    assert reader_of(Crossed)(batch_of(row)) == row


def test_a_null_is_the_default_of_a_field_that_takes_no_none() -> None:
    class Model(BaseModel):
        n: int = 7
        tags: dict[str, str] = Field(default_factory=dict)
        maybe: int | None = 5

    @dataclass
    class Data:
        n: int = 7
        tags: dict[str, str] = field(default_factory=dict)
        maybe: int | None = 5

    schema = pa.schema([field.with_nullable(True) for field in schema_of(Model)])
    batch = batch_of([{"n": None, "tags": None, "maybe": None}], schema)
    for kind in (Model, Data):
        assert reader_of(kind)(batch) == kind(n=7, tags={}, maybe=None)


def test_a_row_that_is_refused_names_the_field_and_the_reason() -> None:
    batch = batch_of([{"number": "x"}], pa.schema([("number", pa.string())]))
    with pytest.raises(ValueError, match=r"number: Input should be a valid integer.*; tags: "):
        reader_of(Plain)(batch)
    tags = schema_of(Plain).field("tags")
    twice: Any = pa.RecordBatch.from_pylist([{"tags": [("a", 1), ("a", 2)]}], pa.schema([tags]))
    with pytest.raises(ValueError, match="duplicate key was 'a'"):
        reader_of(Plain)(twice)


def hidden() -> type:
    class Hidden(BaseModel):
        secret: str = Field(exclude=True)

    return Hidden


def with_argument() -> type:
    @dataclass
    class Made:
        n: int
        scale: InitVar[int]

    return Made


def nested_computed() -> type:
    class Inner(BaseModel):
        model_config = ConfigDict(extra="forbid")
        n: int

        @computed_field
        @property
        def twice(self) -> int:
            return 2 * self.n

    class Outer(BaseModel):
        all: list[Inner]

    return Outer


def without_schema() -> type:
    @dataclass
    class Odd:
        n: "Nowhere"  # noqa: F821  # pyright: ignore[reportUndefinedVariable]

    return Odd


@each(
    ("made", "why"),
    [
        (hidden, "'secret' is excluded"),
        (with_argument, "'scale' is no column"),
        (nested_computed, "Inner.*computed"),
        (without_schema, "Nowhere"),
    ],
)
def test_a_class_that_no_row_can_become_is_refused(made: Callable[[], type], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        reader_of(made())


class Pairs(RootModel[list[int]]):
    pass


class WithNamed(BaseModel):
    one: Named


class WithPairs(BaseModel):
    pairs: Pairs


@each(
    ("given_class", "column"),
    [
        ({"n": dict[tuple[int, ...], int]}, "n.key"),
        ({"n": dict[Named, int]}, "n.key"),
        (WithNamed, "one"),
        (WithPairs, "pairs"),
        (Pairs, ""),
    ],
)
def test_a_topic_is_not_made_of_what_would_come_back_otherwise(
    given_class: Any, column: str
) -> None:
    with pytest.raises(InvalidSchema) as refused:
        schema_of(given_class)
    assert refused.value.column == column
