"""Topics from models and data frames, and models and frames pushed to them, at a real server."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from wings_client import Client
from wings_core.errors import InvalidSchema


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


@pytest.mark.parametrize(("schema", "error"), [({"n": complex}, InvalidSchema), (5, TypeError)])
def test_what_makes_no_topic_is_named(
    wings: Client, new_topic_id: str, schema: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"field 'n'.*complex|schema: cannot make"):
        wings.create_topic(new_topic_id, schema)
