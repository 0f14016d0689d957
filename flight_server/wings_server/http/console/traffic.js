// Rates of a topic, from what `topic-totals` tells twice, and the samples of the last hour.

import { act } from "./api.js";
import { Rates } from "./chart.js";

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

/**
 * Return the samples of the last hour that the server keeps, `{at, NAME: number}`: of all topics, or of
 * what `subject` names. Numbers of the names in `counts` are rates a second, null where not known.
 */
export async function history(subject, counts, signal) {
  const { columns, samples } = await act("history", subject, { signal });
  const rates = new Rates();
  return samples.map((sample) => {
    const found = Object.fromEntries(columns.map((name, index) => [name, sample[index]]));
    for (const name of counts) found[name] = rates.of(name, found[name], found.at);
    return found;
  });
}

const TRAFFIC = ["rows_in", "bytes_in", "rows_out", "bytes_out"];

/** Give charts of rows and bytes, in and out, their past; without the right to it they begin now. */
export function trafficPast(rows, bytes, subject, signal) {
  return history(subject, TRAFFIC, signal).then((past) => {
    rows.past(past.map((each) => [each.at, [each.rows_in, each.rows_out]]));
    bytes.past(past.map((each) => [each.at, [each.bytes_in, each.bytes_out]]));
  }, () => {});
}
