"""The main job on real flight records, where they lie beside the repository."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight
import pytest
from flight_calls import act, get, push

DATA = Path(__file__).parents[3] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the data is not beside the repository")


def create_like(
    client: flight.FlightClient, topic: str, schema: pa.Schema, partition_key: str | None = None
) -> None:
    fields = [{"name": field.name, "type": str(field.type)} for field in schema]
    body = {"schema": {"fields": fields}, "partition_key": partition_key}
    act(client, "create-topic", topic=topic, **body)


def test_records_from_json_go_in_by_origin_and_come_out_the_same(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    rows = pa.Table.from_pylist(json.loads((DATA / "flights-20k.json").read_text()))
    date = pc.strptime(rows["date"], format="%Y/%m/%d %H:%M", unit="us")
    table = rows.set_column(0, "date", date).combine_chunks()
    create_like(client, new_topic_id, table.schema, "origin")
    push(client, new_topic_id, *table.to_batches(max_chunksize=2_500))
    states = act(client, "partition-states", topic=new_topic_id)
    assert sum(state["next_offset"] for state in states) == table.num_rows == 20_000
    for state in states:
        origin = state["partition"]
        there = get(client, kind="scan", topic=new_topic_id, partition=origin).table
        assert there.equals(table.filter(pc.equal(table["origin"], origin)))
    late = get(
        client,
        kind="scan",
        topic=new_topic_id,
        partition="DTW",
        filter="delay > 60",
        columns=["destination", "delay"],
    ).table
    expected = table.filter((pc.field("origin") == "DTW") & (pc.field("delay") > 60))
    assert late.equals(expected.select(["destination", "delay"]))


def test_records_from_an_arrow_file_come_out_in_parallel(
    client: flight.FlightClient, new_topic_id: str
) -> None:
    with pa.OSFile(str(DATA / "flights-200k.arrow"), "rb") as file:
        table = pa.ipc.open_file(file).read_all()
    create_like(client, new_topic_id, table.schema)
    push(client, new_topic_id, *table.to_batches(max_chunksize=65_536))
    command = json.dumps({"topic": new_topic_id, "splits": 4}).encode()
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
    assert info.total_records == table.num_rows == 200_000
    parts = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert [part.num_rows for part in parts] == [50_000] * 4
    assert pa.concat_tables(parts).equals(table)
