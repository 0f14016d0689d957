//! Pushes readings to a topic, fetches them, and takes them from a share group, by Apache Arrow's
//! Flight library alone.

use std::{env, error::Error, sync::Arc};

use arrow_array::{Float64Array, RecordBatch, StringArray};
use arrow_cast::display::array_value_to_string;
use arrow_flight::{
    decode::{DecodedPayload, FlightDataDecoder},
    encode::FlightDataEncoderBuilder,
    Action, FlightClient, FlightDescriptor, Ticket,
};
use arrow_schema::{DataType, Field, Schema};
use futures::{stream, StreamExt, TryStreamExt};
use serde_json::{json, Value};
use tonic::transport::Channel;

const TOPIC: &str = "example-rust";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let address = env::args().nth(1).unwrap_or("127.0.0.1:7777".into());
    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = FlightClient::new(channel);
    let fields = json!([
        {"name": "sensor", "type": "string", "nullable": false},
        {"name": "celsius", "type": "double"},
    ]);
    let created = json!({"topic": TOPIC, "if_not_exists": true, "schema": {"fields": fields}});
    act(&mut client, "create-topic", created).await?;
    let group = json!({
        "group": "workers", "topic": TOPIC, "if_not_exists": true, "config": {"start": "earliest"},
    });
    act(&mut client, "share-create", group).await?;
    push(&mut client).await?;
    fetch(&mut client).await?;
    acquire(&mut client).await
}

/// Writes one batch; its answer comes when it is durable.
async fn push(client: &mut FlightClient) -> Result<()> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("sensor", DataType::Utf8, false),
        Field::new("celsius", DataType::Float64, true),
    ]));
    let batch = RecordBatch::try_new(
        schema,
        vec![
            Arc::new(StringArray::from(vec!["roof", "cellar", "attic"])),
            Arc::new(Float64Array::from(vec![Some(21.5), None, Some(30.0)])),
        ],
    )?;
    let command = json!({"topic": TOPIC}).to_string();
    let data = FlightDataEncoderBuilder::new()
        .with_flight_descriptor(Some(FlightDescriptor::new_cmd(command)))
        .build(stream::iter([Ok(batch)]));
    let mut answers = client.do_put(data).await?;
    while let Some(answer) = answers.try_next().await? {
        let result: Value = serde_json::from_slice(&answer.app_metadata)?;
        if let Some(error) = result.get("error") {
            return Err(error["message"].to_string().into());
        }
        for each in result["committed"].as_array().into_iter().flatten() {
            println!("pushed offsets {} to {}", each["start_offset"], each["end_offset"]);
        }
    }
    Ok(())
}

/// Reads what is there from offset 0 on, and waits up to a second for the first row.
async fn fetch(client: &mut FlightClient) -> Result<()> {
    let ticket = json!({"topic": TOPIC, "offset": 0, "timeout_ms": 1000});
    for (batch, chunk) in read(client, ticket).await? {
        let start = chunk["start_offset"].as_u64().unwrap_or(0) as usize;
        for row in 0..batch.num_rows() {
            println!(
                "fetched {} {} {}",
                start + row,
                array_value_to_string(batch.column(0), row)?,
                array_value_to_string(batch.column(1), row)?,
            );
        }
    }
    Ok(())
}

/// Takes messages that no other member of the group holds, and accepts them.
async fn acquire(client: &mut FlightClient) -> Result<()> {
    let ticket = json!({
        "kind": "acquire", "group": "workers", "topic": TOPIC, "member": "rust", "timeout_ms": 1000,
    });
    let mut acks = Vec::new();
    for (_, taken) in read(client, ticket).await? {
        println!("acquired offsets {} to {}", taken["start_offset"], taken["end_offset"]);
        acks.push(json!({
            "partition": taken["partition"], "first": taken["start_offset"],
            "last": taken["end_offset"], "lease": taken["lease"], "type": "accept",
        }));
    }
    let deliveries = acks.len();
    let body = json!({"group": "workers", "topic": TOPIC, "member": "rust", "acks": acks});
    let answer = act(client, "share-acknowledge", body).await?;
    for each in answer["results"].as_array().into_iter().flatten() {
        if !each["code"].is_null() {
            return Err(each["code"].to_string().into());
        }
    }
    println!("accepted {deliveries} deliveries");
    Ok(())
}

/// Returns the chunks of rows of a ticket; the last chunk, which says why it ended, has none.
async fn read(client: &mut FlightClient, ticket: Value) -> Result<Vec<(RecordBatch, Value)>> {
    let stream = client.do_get(Ticket::new(ticket.to_string())).await?;
    let mut decoder: FlightDataDecoder = stream.into_inner();
    let mut chunks = Vec::new();
    while let Some(decoded) = decoder.next().await {
        let decoded = decoded?;
        if let DecodedPayload::RecordBatch(batch) = decoded.payload {
            if batch.num_rows() > 0 {
                chunks.push((batch, serde_json::from_slice(&decoded.inner.app_metadata)?));
            }
        }
    }
    Ok(chunks)
}

/// Carries out an action: a JSON object in, one JSON value out.
async fn act(client: &mut FlightClient, name: &str, body: Value) -> Result<Value> {
    let results = client.do_action(Action::new(name, body.to_string())).await?;
    let bodies: Vec<_> = results.try_collect().await?;
    Ok(serde_json::from_slice(bodies.first().ok_or("no answer")?)?)
}
