"""The main job, end to end, first with nothing but `pyarrow.flight` on the client's side.

Starts a server on a temporary directory, pushes a million flight records, reads a partition back,
shows a long poll being woken by a push, and reads two columns through a filter; then fetches a few
messages as JSON over HTTP and by the command line. Leaves nothing.

Run it with `make demo`, or `python examples/demo.py [ROWS]`.
"""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import flights
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from wings_server.testing import server_process

ROWS = 1_000_000


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    print(text, flush=True)  # noqa: T201 - a demo talks


def act(client: flight.FlightClient, action: str, body: object) -> object:
    """Call an action: a JSON object in, one JSON result out."""
    results = client.do_action(flight.Action(action, json.dumps(body).encode()))
    return json.loads(next(iter(results)).body.to_pybytes())


def create_topic(client: flight.FlightClient) -> None:
    """Create the topic, partitioned by origin."""
    fields = [
        {"name": field.name, "type": str(field.type), "nullable": field.nullable}
        for field in flights.SCHEMA
    ]
    body = {"topic": "flights", "schema": {"fields": fields}, "partition_key": "origin"}
    act(client, "create-topic", body)
    say("created topic flights, partitioned by origin")


def open_stream(
    client: flight.FlightClient,
) -> tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]:
    """Open a stream to the topic: batches go out, and for each an answer comes back."""
    descriptor = flight.FlightDescriptor.for_path("flights")
    return client.do_put(descriptor, flights.SCHEMA)  # pyright: ignore[reportReturnType] - the stubs are wrong


def read_answer(answers: flight.FlightMetadataReader) -> dict[str, Any]:
    """Wait for the next answer: the batch is durable then, and this tells its offsets."""
    answer = answers.read()
    assert answer is not None, "the stream ended"
    return json.loads(answer.to_pybytes())


def push(client: flight.FlightClient, rows: int) -> None:
    """Push all flights on one open stream; answers come while batches are still being sent."""
    batches = list(flights.generate(rows))
    started = time.perf_counter()
    writer, answers = open_stream(client)
    for batch in batches:
        writer.write_batch(batch)
    writer.done_writing()
    committed = 0
    for _ in batches:
        parts = read_answer(answers)["committed"]
        committed += sum(part["end_offset"] - part["start_offset"] + 1 for part in parts)
    writer.close()
    seconds = time.perf_counter() - started
    megabytes = sum(batch.nbytes for batch in batches) / 1e6
    say(
        f"pushed {committed:,} rows in {seconds:.2f} s, durably: "
        f"{committed / seconds / 1e6:.1f} M rows/s, {megabytes / seconds:.0f} MB/s"
    )


def read(client: flight.FlightClient, ticket: dict[str, Any]) -> pa.Table:
    """Read a ticket to its end; the last chunk is empty and says why the stream ended."""
    return client.do_get(flight.Ticket(json.dumps(ticket).encode())).read_all()


def read_partition(client: flight.FlightClient) -> None:
    """Read one partition from its start."""
    started = time.perf_counter()
    table = read(client, {"kind": "scan", "topic": "flights", "partition": "JFK"})
    seconds = time.perf_counter() - started
    say(
        f"read partition JFK: {table.num_rows:,} rows in {seconds * 1e3:.0f} ms "
        f"({table.num_rows / seconds / 1e6:.1f} M rows/s), first at {table['date'][0]}"
    )


def wake_long_poll(client: flight.FlightClient, endpoint: str) -> None:
    """Wait at the end of a partition, and push a flight that wakes the wait."""
    woken: list[tuple[float, pa.Table]] = []
    ticket = {"topic": "flights", "partition": "JFK", "offset": "latest", "timeout_ms": 20_000}

    def wait() -> None:
        with flight.connect(endpoint) as consumer:
            table = read(consumer, ticket)
            woken.append((time.perf_counter(), table))

    consumer = threading.Thread(target=wait)
    consumer.start()
    time.sleep(0.5)  # Long enough that the poll has surely begun to wait.
    late = next(flights.generate(10_000, seed=7))
    late = late.filter(pc.equal(late["origin"], pa.scalar("JFK"))).slice(0, 1)
    pushed = time.perf_counter()
    writer, answers = open_stream(client)
    writer.write_batch(late)
    read_answer(answers)
    writer.close()
    consumer.join()
    at, table = woken[0]
    row = table.to_pylist()[0]
    say(
        f"a long poll on JFK was woken {(at - pushed) * 1e3:.1f} ms after a push began: "
        f"JFK to {row['destination']}, {row['delay']} minutes late"
    )


def read_filtered(client: flight.FlightClient) -> None:
    """Read two columns of the rows that a SQL predicate lets through, evaluated on the server."""
    started = time.perf_counter()
    command = {
        "topic": "flights",
        "columns": ["destination", "delay"],
        "filter": "delay > 60 and distance < 500",
    }
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command)))
    parts = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    table = pa.concat_tables(parts).combine_chunks()  # What comes off the wire is not aligned.
    seconds = time.perf_counter() - started
    worst = table.group_by("destination").aggregate([("delay", "max"), ("delay", "count")])
    top = worst.sort_by([("delay_count", "descending")]).slice(0, 3).to_pylist()
    named = ", ".join(f"{row['destination']} ({row['delay_count']})" for row in top)
    say(
        f"filtered {len(info.endpoints)} partitions to {table.num_rows:,} rows of 2 columns "
        f"in {seconds * 1e3:.0f} ms; late and near, by destination: {named}"
    )


def fetch_over_http(url: str) -> None:
    """Fetch the first messages of a partition as JSON, with nothing but the standard library."""
    body = {
        "namespace": "tenants/default/namespaces/default",
        "max_messages": 2,
        "topics": [{"topic": "flights", "partition_value": "HNL", "offset": 0}],
    }
    request = urllib.request.Request(
        f"{url}/v1/fetch", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        (result,) = json.load(answer)["topics"]
    say(f"the same log over HTTP, as JSON: {json.dumps(result['messages'][0])}")


def fetch_by_command(endpoint: str) -> None:
    """Fetch by the command line."""
    command = [sys.executable, "-m", "wings_client.cli", "fetch", "flights"]
    command += ["--endpoint", endpoint, "--partition", "HNL", "--offset", "0"]
    say("$ wings fetch flights --partition HNL --offset 0 --max-messages 3")
    subprocess.run([*command, "--max-messages", "3"], check=True)


def main() -> None:
    """Run the demo."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with server_process() as server:
        say(f"server ready at {server.flight} (process {server.pid}), on a temporary directory")
        with flight.connect(server.flight) as client:
            create_topic(client)
            push(client, rows)
            read_partition(client)
            wake_long_poll(client, server.flight)
            read_filtered(client)
        fetch_over_http(server.http)
        fetch_by_command(server.flight)
    say("server stopped, directory removed")


if __name__ == "__main__":
    main()
