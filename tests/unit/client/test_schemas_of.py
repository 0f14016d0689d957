"""Schemas of topics from classes, data frames and Python's types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pytest
from pydantic import BaseModel, Field, PositiveInt, computed_field
from tables import each

from wings_client._schemas import schema_of
from wings_core.errors import InvalidArgument, InvalidSchema

UTC_TIME = pa.timestamp("us", tz="UTC")


class Kind(StrEnum):
    ROOF = "roof"


class Level(IntEnum):
    LOW = 1


class Plain(Enum):
    A = "a"


class Place(BaseModel):
    name: str
    floor: int | None


@dataclass
class Reading:
    sensor: str
    celsius: float | None
    kind: Kind = Kind.ROOF


class Named(NamedTuple):
    key: str
    n: int


class Typed(TypedDict):
    key: str
    n: NotRequired[int]


class Model(BaseModel):
    key: PositiveInt
    price: Decimal = Field(max_digits=10, decimal_places=2)
    place: Place
    tags: list[str] | None = None
    small: Annotated[int, pa.int16()] = 0
    hidden: object = Field(default=None, exclude=True)

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.key


class Loop(BaseModel):
    inner: "Loop | None"


def required(name: str, data_type: Any) -> Any:
    return pa.field(name, data_type, nullable=False)


@each(
    ("annotation", "expected", "nullable"),
    [
        (int, pa.int64(), False),
        (float, pa.float64(), False),
        (str, pa.string(), False),
        (bytes, pa.binary(), False),
        (bool, pa.bool_(), False),
        (datetime, UTC_TIME, False),
        (date, pa.date32(), False),
        (time, pa.time64("us"), False),
        (timedelta, pa.duration("us"), False),
        (Decimal, pa.decimal128(38, 9), False),
        (int | None, pa.int64(), True),
        (list[int], pa.list_(required("item", pa.int64())), False),
        (Sequence[int | None], pa.list_(pa.int64()), False),
        (tuple[str, ...] | None, pa.list_(required("item", pa.string())), True),
        (Mapping[str, int | None], pa.map_(pa.string(), pa.int64()), False),
        (Literal["a", "b"], pa.string(), False),
        (Literal[1, None], pa.int64(), True),
        (Kind, pa.string(), False),
        (Level, pa.int64(), False),
        (NewType("UserId", int), pa.int64(), False),
        (Annotated[int | None, pa.int8()], pa.int8(), True),
        (Named, pa.struct([required("key", pa.string()), required("n", pa.int64())]), False),
        (pa.int32(), pa.int32(), True),
        (np.dtype("int32"), pa.int32(), True),
        ("int8 not null", pa.int8(), False),
    ],
)
def test_python_types_make_columns(annotation: object, expected: Any, nullable: bool) -> None:
    assert schema_of({"a": annotation}).field("a") == pa.field("a", expected, nullable)


def test_classes_make_schemas() -> None:
    assert schema_of(Reading) == pa.schema(
        [required("sensor", pa.string()), ("celsius", pa.float64()), required("kind", pa.string())]
    )
    assert schema_of(Named) == pa.schema([required("key", pa.string()), required("n", pa.int64())])
    assert schema_of(Typed) == pa.schema([required("key", pa.string()), ("n", pa.int64())])
    assert schema_of(Model) == pa.schema(
        [
            required("key", pa.int64()),
            required("price", pa.decimal128(10, 2)),
            required("place", pa.struct([required("name", pa.string()), ("floor", pa.int64())])),
            ("tags", pa.list_(required("item", pa.string()))),
            required("small", pa.int16()),
            required("twice", pa.int64()),
        ]
    )


def test_frames_and_their_schemas_make_schemas() -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    expected = pa.schema([("n", pa.int64()), ("b", pa.bool_())])
    frame = pd.DataFrame({"n": [1], "b": [True]})
    for given in (frame, frame.dtypes, dict(frame.dtypes), pa.table(frame), expected):
        assert schema_of(given) == expected
    polars = pl.DataFrame({"n": [1], "b": [True]})
    for given in (polars, polars.lazy(), polars.schema, dict(polars.schema)):
        assert schema_of(given) == expected
    assert schema_of({"s": pl.String, "l": pl.List(pl.Int8)}) == pa.schema(
        [("s", pa.string()), ("l", pa.large_list(pa.int8()))]
    )
    assert schema_of(pd.DataFrame({"s": ["x"]})).field("s").type in (pa.string(), pa.large_string())
    with pytest.raises(InvalidSchema, match=r"'o'.*every value is missing"):
        schema_of(pd.DataFrame({"o": [None]}))
    with pytest.raises(InvalidSchema, match=r"'o'.*dtype object"):
        schema_of(pd.DataFrame({"o": [{}]}).dtypes)


def test_what_exports_an_arrow_schema_makes_a_schema() -> None:
    class Exporter:
        def __arrow_c_schema__(self) -> object:
            return pa.schema([("n", pa.int64())]).__arrow_c_schema__()

    assert schema_of(Exporter()) == pa.schema([("n", pa.int64())])


@each(
    "annotation", [set[int], complex, Any, int | str, Plain, Literal[1, "a"], list, object(), None]
)
def test_an_unsupported_annotation_is_named_with_its_field(annotation: object) -> None:
    with pytest.raises(InvalidSchema, match=r"field 'a': .* supported are int, float") as refused:
        schema_of({"a": annotation})
    assert refused.value.column == "a"


def test_a_nested_field_is_named_whole() -> None:
    class Outer(BaseModel):
        inner: list[Annotated[dict[str, complex], "nothing"]]

    with pytest.raises(InvalidSchema, match=r"'inner\.\[\]\.value'.*complex"):
        schema_of(Outer)
    with pytest.raises(InvalidSchema, match=r"'inner'.*contains itself"):
        schema_of(Loop)


@each("given", [5, "int64", None, int, [("a", "int64")]])
def test_what_is_no_schema_says_what_is_one(given: object) -> None:
    with pytest.raises(InvalidArgument, match=r"schema: cannot make a schema of a .*: expected"):
        schema_of(given)


def test_an_instance_of_a_model_says_to_pass_its_class() -> None:
    with pytest.raises(InvalidArgument, match=r"pass its class"):
        schema_of(Place(name="x", floor=1))
