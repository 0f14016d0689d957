// Command example pushes readings to a topic, fetches them, and takes them from a share group,
// by Apache Arrow's Flight library alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const topic = "example-go"

var schema = arrow.NewSchema([]arrow.Field{
	{Name: "sensor", Type: arrow.BinaryTypes.String},
	{Name: "celsius", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
}, nil)

type object = map[string]any

// acquired is what comes with each delivery of a share group.
type acquired struct {
	Partition   any    `json:"partition"`
	StartOffset int64  `json:"start_offset"`
	EndOffset   int64  `json:"end_offset"`
	Lease       string `json:"lease"`
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address := "127.0.0.1:7777"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	client, err := flight.NewClientWithMiddleware(
		address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	defer client.Close()

	act(ctx, client, "create-topic", object{
		"topic": topic, "if_not_exists": true, "schema": object{"fields": []object{
			{"name": "sensor", "type": "string", "nullable": false},
			{"name": "celsius", "type": "double"},
		}}})
	act(ctx, client, "share-create", object{
		"group": "workers", "topic": topic, "if_not_exists": true,
		"config": object{"start": "earliest"}})
	push(ctx, client)
	fetch(ctx, client)
	acquire(ctx, client)
}

// push writes one batch; its answer comes when it is durable.
func push(ctx context.Context, client flight.Client) {
	builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer builder.Release()
	builder.Field(0).(*array.StringBuilder).AppendValues([]string{"roof", "cellar", "attic"}, nil)
	builder.Field(1).(*array.Float64Builder).AppendValues([]float64{21.5, 0, 30}, []bool{true, false, true})
	record := builder.NewRecordBatch()
	defer record.Release()

	stream, err := client.DoPut(ctx)
	check(err)
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{
		Type: flight.DescriptorCMD, Cmd: encode(object{"topic": topic})})
	check(writer.Write(record))
	check(writer.Close())
	check(stream.CloseSend())
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		check(err)
		var result struct {
			Committed []struct {
				StartOffset int64 `json:"start_offset"`
				EndOffset   int64 `json:"end_offset"`
			} `json:"committed"`
			Error object `json:"error"`
		}
		check(json.Unmarshal(answer.AppMetadata, &result))
		if result.Error != nil {
			log.Fatal(result.Error["message"])
		}
		for _, each := range result.Committed {
			fmt.Printf("pushed offsets %d to %d\n", each.StartOffset, each.EndOffset)
		}
	}
}

// fetch reads what is there from offset 0 on, and waits up to a second for the first row.
func fetch(ctx context.Context, client flight.Client) {
	read(ctx, client, object{"topic": topic, "offset": 0, "timeout_ms": 1000},
		func(batch arrow.RecordBatch, metadata []byte) {
			var chunk struct {
				StartOffset int64 `json:"start_offset"`
			}
			check(json.Unmarshal(metadata, &chunk))
			for row := range int(batch.NumRows()) {
				fmt.Printf("fetched %d %s %s\n", chunk.StartOffset+int64(row),
					batch.Column(0).ValueStr(row), batch.Column(1).ValueStr(row))
			}
		})
}

// acquire takes messages that no other member of the group holds, and accepts them.
func acquire(ctx context.Context, client flight.Client) {
	acks := []object{}
	read(ctx, client, object{
		"kind": "acquire", "group": "workers", "topic": topic, "member": "go", "timeout_ms": 1000,
	}, func(batch arrow.RecordBatch, metadata []byte) {
		var taken acquired
		check(json.Unmarshal(metadata, &taken))
		fmt.Printf("acquired offsets %d to %d\n", taken.StartOffset, taken.EndOffset)
		acks = append(acks, object{"partition": taken.Partition, "first": taken.StartOffset,
			"last": taken.EndOffset, "lease": taken.Lease, "type": "accept"})
	})
	answer := act(ctx, client, "share-acknowledge", object{
		"group": "workers", "topic": topic, "member": "go", "acks": acks})
	for _, each := range answer.(object)["results"].([]any) {
		if code := each.(object)["code"]; code != nil {
			log.Fatal(code)
		}
	}
	fmt.Printf("accepted %d deliveries\n", len(acks))
}

// read calls take for each chunk of rows of a ticket; the last chunk, which says why the stream
// ended, has none.
func read(ctx context.Context, client flight.Client, ticket object, take func(arrow.RecordBatch, []byte)) {
	stream, err := client.DoGet(ctx, &flight.Ticket{Ticket: encode(ticket)})
	check(err)
	reader, err := flight.NewRecordReader(stream)
	check(err)
	defer reader.Release()
	for reader.Next() {
		if batch := reader.RecordBatch(); batch.NumRows() > 0 {
			take(batch, reader.LatestAppMetadata())
		}
	}
	check(reader.Err())
}

// act carries out an action: a JSON object in, one JSON value out.
func act(ctx context.Context, client flight.Client, name string, body object) any {
	stream, err := client.DoAction(ctx, &flight.Action{Type: name, Body: encode(body)})
	check(err)
	result, err := stream.Recv()
	check(err)
	var answer any
	check(json.Unmarshal(result.Body, &answer))
	return answer
}

func encode(value object) []byte {
	text, err := json.Marshal(value)
	check(err)
	return text
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
