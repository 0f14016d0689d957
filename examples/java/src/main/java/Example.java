import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.arrow.flight.Action;
import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.Location;
import org.apache.arrow.flight.PutResult;
import org.apache.arrow.flight.SyncPutListener;
import org.apache.arrow.flight.Ticket;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Pushes readings to a topic, fetches them, and takes them from a share group, by Apache Arrow's
 * Flight library alone (Jackson comes with it).
 */
public final class Example implements AutoCloseable {
  private static final String TOPIC = "example-java";
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Schema SCHEMA =
      new Schema(
          List.of(
              new Field("sensor", FieldType.notNullable(new ArrowType.Utf8()), null),
              new Field(
                  "celsius",
                  FieldType.nullable(new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE)),
                  null)));

  private final BufferAllocator allocator = new RootAllocator();
  private final FlightClient client;

  private Example(String host, int port) {
    client = FlightClient.builder(allocator, Location.forGrpcInsecure(host, port)).build();
  }

  public static void main(String[] arguments) throws Exception {
    String[] address = (arguments.length > 0 ? arguments[0] : "127.0.0.1:7777").split(":");
    try (Example example = new Example(address[0], Integer.parseInt(address[1]))) {
      example.create();
      example.push();
      example.fetch();
      example.acquire();
    }
  }

  private void create() throws Exception {
    List<Object> fields =
        List.of(
            Map.of("name", "sensor", "type", "string", "nullable", false),
            Map.of("name", "celsius", "type", "double"));
    act(
        "create-topic",
        Map.of("topic", TOPIC, "if_not_exists", true, "schema", Map.of("fields", fields)));
    act(
        "share-create",
        Map.of(
            "group", "workers", "topic", TOPIC, "if_not_exists", true,
            "config", Map.of("start", "earliest")));
  }

  /** Writes one batch; its answer comes when it is durable. */
  private void push() throws Exception {
    FlightDescriptor descriptor = FlightDescriptor.command(encode(Map.of("topic", TOPIC)));
    try (VectorSchemaRoot root = VectorSchemaRoot.create(SCHEMA, allocator);
        SyncPutListener answers = new SyncPutListener()) {
      VarCharVector sensors = (VarCharVector) root.getVector("sensor");
      Float8Vector celsius = (Float8Vector) root.getVector("celsius");
      List<String> names = List.of("roof", "cellar", "attic");
      List<Double> degrees = Arrays.asList(21.5, null, 30.0);
      for (int row = 0; row < names.size(); row++) {
        sensors.setSafe(row, names.get(row).getBytes(StandardCharsets.UTF_8));
        if (degrees.get(row) == null) {
          celsius.setNull(row);
        } else {
          celsius.setSafe(row, degrees.get(row));
        }
      }
      root.setRowCount(names.size());
      FlightClient.ClientStreamListener stream = client.startPut(descriptor, root, answers);
      stream.putNext();
      stream.completed();
      PutResult answer;
      while ((answer = answers.read()) != null) {
        JsonNode result = decode(answer.getApplicationMetadata());
        answer.close();
        if (result.has("error")) {
          throw new IllegalStateException(result.get("error").get("message").asText());
        }
        for (JsonNode each : result.get("committed")) {
          System.out.printf(
              "pushed offsets %d to %d%n",
              each.get("start_offset").asLong(), each.get("end_offset").asLong());
        }
      }
      stream.getResult();
    }
  }

  /** Reads what is there from offset 0 on, and waits up to a second for the first row. */
  private void fetch() throws Exception {
    read(
        Map.of("topic", TOPIC, "offset", 0, "timeout_ms", 1000),
        (root, metadata) -> {
          long start = metadata.get("start_offset").asLong();
          for (int row = 0; row < root.getRowCount(); row++) {
            System.out.printf(
                "fetched %d %s %s%n",
                start + row,
                root.getVector("sensor").getObject(row),
                root.getVector("celsius").getObject(row));
          }
        });
  }

  /** Takes messages that no other member of the group holds, and accepts them. */
  private void acquire() throws Exception {
    List<Object> acks = new ArrayList<>();
    read(
        Map.of(
            "kind", "acquire", "group", "workers", "topic", TOPIC, "member", "java",
            "timeout_ms", 1000),
        (root, taken) -> {
          long first = taken.get("start_offset").asLong();
          long last = taken.get("end_offset").asLong();
          System.out.printf("acquired offsets %d to %d%n", first, last);
          acks.add(
              JSON.createObjectNode()
                  .put("first", first)
                  .put("last", last)
                  .put("lease", taken.get("lease").asText())
                  .put("type", "accept")
                  .set("partition", taken.get("partition")));
        });
    JsonNode answer =
        act(
            "share-acknowledge",
            Map.of("group", "workers", "topic", TOPIC, "member", "java", "acks", acks));
    for (JsonNode each : answer.get("results")) {
      if (!each.get("code").isNull()) {
        throw new IllegalStateException(each.get("code").asText());
      }
    }
    System.out.printf("accepted %d deliveries%n", acks.size());
  }

  @FunctionalInterface
  private interface Take {
    void take(VectorSchemaRoot root, JsonNode metadata);
  }

  /** Hands on each chunk of rows of a ticket; the last, which says why it ended, has none. */
  private void read(Map<String, Object> ticket, Take take) throws Exception {
    try (FlightStream stream = client.getStream(new Ticket(encode(ticket)))) {
      while (stream.next()) {
        VectorSchemaRoot root = stream.getRoot();
        if (root.getRowCount() > 0) {
          take.take(root, decode(stream.getLatestMetadata()));
        }
      }
    }
  }

  /** Carries out an action: a JSON object in, one JSON value out. */
  private JsonNode act(String name, Map<String, Object> body) throws Exception {
    return JSON.readTree(client.doAction(new Action(name, encode(body))).next().getBody());
  }

  private static byte[] encode(Object value) throws Exception {
    return JSON.writeValueAsBytes(value);
  }

  private static JsonNode decode(ArrowBuf buffer) throws Exception {
    byte[] bytes = new byte[(int) buffer.readableBytes()];
    buffer.getBytes(buffer.readerIndex(), bytes);
    return JSON.readTree(bytes);
  }

  @Override
  public void close() throws Exception {
    client.close();
    allocator.close();
  }
}
