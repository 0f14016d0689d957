# ruff: noqa: T201 - a program, as people write them.
"""A consumer."""

import wings_client

with wings_client.connect("grpc://127.0.0.1:7777") as client:
    topic = client.create_topic("orders", {"id": "int64", "amount": "double"})
    print(topic.name, topic.schema.names, topic.key_type)
    pushed = client.push("orders", {"id": [1, 2, 3], "amount": [9.5, 20.0, 3.25]})
    client.push(topic, [{"id": 1, "amount": 2.0}])
    print(pushed.rows, pushed.committed[0].start_offset)
    result = client.fetch("orders", offset=0, timeout=1.0)
    print(result.num_rows, result.next_offset, result.table.num_rows)
    print(result.to_arrow().to_pylist(), result.table.column_names)
    frame = result.to_pandas()
    print(frame["id"].sum(), result.to_polars())
    for batch, start, end in client.follow("orders", offset="earliest", timeout=1.0):
        print(start, end, batch.num_rows, batch.to_pylist())
    for chunk in client.follow("orders", timeout=1.0):
        print(chunk.to_pandas(), chunk.batch.schema)
    reader = client.scan("orders")
    print(reader.schema)
    for scanned in reader:
        print(scanned.num_rows, scanned.to_pydict())
    table = client.sql("SELECT * FROM orders WHERE id > ?", [1]).read_all()
    print(table.num_rows, table.to_pandas())
    print(client.sql("SELECT 1").read_pandas())
    client.create_share_group("billing", "orders", {"start": "earliest"})
    with client.share_consumer("billing", "orders", timeout=1) as consumer:
        for delivery in consumer:
            print(delivery.batch.num_rows, delivery.to_pandas())
            consumer.accept(delivery)
    with client.consumer("c", "orders", timeout=1) as named:
        for consumed in named:
            print(consumed.batch.num_rows)
    with client.producer("orders") as producer:
        producer.send({"id": [1], "amount": [1.0]})
        producer.append({"id": 1, "amount": 1.0})
    with client.stage("orders", "s") as stage:
        stage.write({"id": [1], "amount": [1.0]})


class Order:
    """An order."""

    id: int
    amount: float


def handled(message: wings_client.Message) -> wings_client.Reject | None:
    """Handle a message."""
    print(message.batch.num_rows, message.batch.to_pylist(), message.partition)
    return wings_client.Reject("no") if message.delivery_count > 3 else None


def more(client: wings_client.Client) -> None:
    """Call the rest."""
    with client.stage("orders", "stage-1") as stage:
        stage.write({"id": [1], "amount": [1.0]})
    published = client.publish("writer", 1, ["stage-1"])
    print(published.committed[0].end_offset)
    client.worker("billing", "orders", handled).run()
    for reply in client.gather([wings_client.gather.Request("orders", partition=1)]):
        print(reply.batch.num_rows)
    schema, tickets = client.scan_tickets("orders")
    print(schema.names, [field.name for field in schema])
    for chunk in client.read_ticket(tickets[0]):
        print(chunk.to_arrow().num_rows)
    for many in client.follow("orders", partitions="all"):
        for part in many.parts():
            print(part.partition, part.batch.schema.field("id").type)
    print(client.snapshot("orders").read_all().num_rows)
    for topic in client.topics():
        print(topic.schema, topic.key_type, topic.config)
    rows: wings_client.arrow.Table = client.fetch("orders", offset=0).table
    for batch in rows.to_batches():
        print(batch.num_rows)
    print(rows.column("id").to_pylist(), rows["id"][0].as_py())


async def awaited() -> None:
    """Await the same."""
    async with wings_client.connect_async("grpc://127.0.0.1:7777") as client:
        await client.create_topic("orders", Order)
        await client.push("orders", [{"id": 1, "amount": 1.0}])
        print((await client.fetch("orders", offset=0)).table.num_rows)
        async with client.follow("orders", timeout=1) as follow:
            async for batch, start, end in follow:
                print(batch.num_rows, start, end)
        async for batch in client.scan("orders"):
            print(batch.num_rows)
        print((await (await client.sql("SELECT 1")).read_all()).to_pylist())
        async with client.share_consumer("billing", "orders", timeout=1) as consumer:
            async for delivery in consumer:
                print(delivery.rows.num_rows, delivery.to_pandas())
                await consumer.accept(delivery, [0])
