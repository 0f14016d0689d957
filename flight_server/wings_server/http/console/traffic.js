// Rates of a topic, from what `topic-totals` tells twice.

/** Return the rates of a topic's totals since they were last told; null where they are not known. */
export function ratesOf(rates, totals, at) {
  const traffic = totals.traffic ?? {};
  const origin = traffic.since ?? "";
  const of = (name, value) => (value === undefined ? null : rates.of(`${totals.topic} ${name}`, value, at, name === "messages" ? "" : origin));
  return {
    rowsIn: of("messages", totals.messages),
    bytesIn: of("bytes_in", traffic.bytes_in),
    rowsOut: of("rows_out", traffic.rows_out),
    bytesOut: of("bytes_out", traffic.bytes_out),
  };
}
