"""The client in a real kernel, whose cells run in an event loop."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wings_server.testing import running_server

if TYPE_CHECKING:
    from nbformat import NotebookNode

NOTEBOOK = Path(__file__).parents[2] / "examples/flights.ipynb"


CONNECTED = """
import asyncio, os
import wings_client
os.environ["WINGS_PROGRESS_SECONDS"] = "0"
client = wings_client.connect(os.environ["WINGS_ENDPOINT"])
assert asyncio.get_running_loop().is_running()
"""

PUSHED = """
import pyarrow as pa
topic = client.create_topic("numbers", {"n": "int64"})
client.push(topic, pa.table({"n": range(300_000)}), batch_rows=10_000).rows
"""

BLOCKING = """
with client.producer(topic) as producer:
    producer.append({"n": -1})
seen = [client.fetch(topic, offset=0, max_messages=3).num_rows]
seen.append(sum(batch.num_rows for batch, *_ in client.follow(topic, offset=0, timeout=0.1)))
seen += client.sql("SELECT count(*) AS n FROM numbers").read_all()["n"].to_pylist()
client.create_share_group("group", topic, {"start": "earliest"})
with client.share_consumer("group", topic, max_messages=7, timeout=60) as consumer:
    delivery = next(consumer)
    consumer.accept(delivery)
    seen.append(len(delivery))
with client.consumer("reader", topic, timeout=0.1) as consumer:
    seen.append(sum(each.batch.num_rows for each in consumer))
request = wings_client.gather.Request(topic.name, offset=0)
seen.append(sum(each.batch.num_rows for each in client.gather([request])) > 0)
seen
"""

SCANNED = "client.scan(topic).read_all().num_rows"

BEGUN = """
reader = client.scan(topic)
reader.read_next_batch().num_rows + reader.read_next_batch().num_rows < 300_001
"""

AWAITED = """
async with wings_client.connect_async(os.environ["WINGS_ENDPOINT"]) as other:
    rows = sum([batch.num_rows async for batch in other.scan(topic)])
rows
"""


@pytest.fixture(scope="module")
def executed() -> "list[NotebookNode]":
    """The cells of the notebook and then those from here, as one kernel executed them."""
    # Imported here, as it takes a while, and each process that shares the tests imports them all.
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in (CONNECTED, PUSHED, BLOCKING, SCANNED, AWAITED, BEGUN):
        notebook.cells.append(nbformat.v4.new_code_cell(cell))
    with running_server() as server, pytest.MonkeyPatch.context() as patched:
        patched.setenv("WINGS_ENDPOINT", server.flight)
        patched.setenv("WINGS_PROGRESS_SECONDS", "inf")  # On a busy machine all takes long.
        NotebookClient(notebook, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    return notebook.cells


def outputs(cells: "list[NotebookNode]") -> list[list[object]]:
    return [
        [output.get("text") or output["data"] for output in cell.outputs]
        for cell in cells
        if cell.cell_type == "code"
    ]


def test_the_notebook_does_what_it_shows(executed: "list[NotebookNode]") -> None:
    import nbformat

    shown = nbformat.read(NOTEBOOK, as_version=4).cells
    assert outputs(executed[: len(shown)]) == outputs(shown)


def test_all_calls_work_while_the_loop_of_the_kernel_runs_and_long_ones_show_their_progress(
    executed: "list[NotebookNode]",
) -> None:
    pushed, blocking, scanned, awaited, begun = executed[-5:]
    assert [each.output_type for each in pushed.outputs] == ["display_data", "execute_result"]
    assert [each.output_type for each in scanned.outputs] == ["display_data", "execute_result"]
    ended = {"text/html": "", "text/plain": ""}
    assert pushed.outputs[0].data == scanned.outputs[0].data == ended
    assert pushed.outputs[1].data == {"text/plain": "300000"}
    assert blocking.outputs[-1].data["text/plain"] == "[3, 300001, 300001, 7, 300001, True]"
    assert scanned.outputs[1].data == awaited.outputs[0].data == {"text/plain": "300001"}
    assert begun.outputs[1].data == {"text/plain": "True"}
    text = begun.outputs[0].data["text/plain"]
    assert re.fullmatch(r"scan of numbers: [\d,]+ of 300,001 rows, [\d,]+ rows/s", text)
    assert re.match('<progress value="[0-9]+" max="300001">', begun.outputs[0].data["text/html"])
