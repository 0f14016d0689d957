// The public HTTP API, and what the console knows of its own connection and rights.

const TOKEN = "wings-token";

/** An answer that is an error: `code` and `message` are the API's. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The server did not answer: it is gone, or the network is. */
export class Unreachable extends Error {}

/** Tells of "lost", "back", and "token" (one is needed, or was entered or forgotten). */
export const events = new EventTarget();

const tell = (name, detail) => events.dispatchEvent(new CustomEvent(name, { detail }));

export const token = {
  /** Kept for this tab alone, and never in an address. */
  get: () => sessionStorage.getItem(TOKEN),
  set(text) {
    sessionStorage.setItem(TOKEN, text);
    const isAwaited = waiting.length > 0;
    waiting.splice(0).forEach((resolve) => resolve(true));
    tell("token", isAwaited);
  },
  forget() {
    sessionStorage.removeItem(TOKEN);
    tell("token");
  },
  /** The user closed the dialog: what waits for a token fails. */
  refuse: () => waiting.splice(0).forEach((resolve) => resolve(false)),
};

const waiting = [];

function askForToken(message) {
  return new Promise((resolve) => {
    waiting.push(resolve);
    if (waiting.length === 1) tell("token-needed", message);
  });
}

/** Run an action of the API: `POST /v1/actions/NAME`. */
export const act = (name, body = {}, options = {}) =>
  call("POST", `/v1/actions/${encodeURIComponent(name)}`, body, options);

/** Run a SQL statement; returns `{schema: {fields}, rows}`, with big integers as BigInt. */
export const sql = (text, { namespace, parameters, ...options } = {}) =>
  call("POST", "/v1/sql", { sql: text, ...(namespace && { namespace }), ...(parameters && { parameters }) }, { ...options, exact: true });

/**
 * Make a request, and return its JSON. Asks for a token where one is needed.
 *
 * Throws ApiError for an error of the API, Unreachable where there is no answer.
 */
export async function call(method, path, body, { signal, exact = false } = {}) {
  for (;;) {
    const used = token.get();
    const answer = await request(method, path, body, used, signal);
    if (answer.ok) return parsed(await text(answer, signal), exact);
    const error = await problem(answer);
    if (error.code !== "UNAUTHENTICATED") throw error;
    // Another call may have got a token meanwhile.
    if (used === token.get() && !(await askForToken(used === null ? "" : error.message))) throw error;
  }
}

async function request(method, path, body, used, signal) {
  const headers = { accept: "application/json" };
  if (used !== null) headers.authorization = `Bearer ${used}`;
  const options = { method, headers, signal, cache: "no-store", credentials: "omit" };
  if (body !== undefined && method !== "GET") {
    headers["content-type"] = "application/json";
    options.body = JSON.stringify(body, (_, value) => (typeof value === "bigint" ? JSON.rawJSON(value.toString()) : value));
  }
  try {
    return await fetch(path, options);
  } catch (error) {
    throw gone(error, signal);
  }
}

async function text(answer, signal) {
  try {
    return await answer.text();
  } catch (error) {
    throw gone(error, signal);
  }
}

function gone(error, signal) {
  if (signal?.aborted) return error;
  connection.lose();
  return new Unreachable("The server does not answer.");
}

async function problem(answer) {
  try {
    const found = await answer.json();
    return new ApiError(answer.status, found.code ?? "INTERNAL", found.message ?? answer.statusText);
  } catch {
    return new ApiError(answer.status, "INTERNAL", `HTTP ${answer.status} ${answer.statusText}`);
  }
}

/** Members of answers that are a partition's value, exact in all of them: a key may be any integer. */
const PARTITION = new Set(["partition", "partition_value"]);

function parsed(text, exact) {
  return exact ? exactJson(text) : JSON.parse(text, (key, value, context) => (PARTITION.has(key) ? exactly(key, value, context) : value));
}

/** Parse JSON, with integers beyond 2^53 as BigInt. */
export const exactJson = (text) => JSON.parse(text, exactly);

function exactly(_, value, context) {
  const isCut = typeof value === "number" && !Number.isSafeInteger(value) && context !== undefined;
  return isCut && /^-?\d+$/.test(context.source) ? BigInt(context.source) : value;
}

const WAITS = [500, 1_000, 2_000, 4_000, 8_000, 15_000];

/** Whether the server answers. While it does not, one request at a time asks, ever more rarely. */
export const connection = {
  isUp: true,
  attempt: 0,
  lose() {
    if (!this.isUp) return;
    this.isUp = false;
    this.attempt = 0;
    tell("lost");
    void this.look();
  },
  async look() {
    while (!this.isUp) {
      const wait = WAITS[Math.min(this.attempt, WAITS.length - 1)] * (0.75 + Math.random() / 2);
      this.nextAt = Date.now() + wait;
      tell("lost");
      await new Promise((resolve) => {
        this.now = resolve;
        setTimeout(resolve, wait);
      });
      this.attempt += 1;
      try {
        const answer = await fetch("/healthz", { cache: "no-store", signal: AbortSignal.timeout(5_000) });
        this.isUp = answer.ok;
      } catch {
        this.isUp = false;
      }
    }
    tell("back");
  },
  /** Ask at once. */
  now() {},
  /** Wait until the server answers. */
  up(signal) {
    if (this.isUp) return Promise.resolve();
    return new Promise((resolve) => {
      events.addEventListener("back", resolve, { once: true, signal });
      signal?.addEventListener("abort", resolve, { once: true });
    });
  },
};

const SLOWEST = 15_000;

/**
 * Call a function again and again until `signal` aborts: at most every `interval` milliseconds, and
 * for a tenth of the time at most, so that what takes long is asked for rarely, but `SLOWEST`
 * milliseconds after its last answer at the latest. Pauses while the page
 * is hidden or the server gone; errors go to `onError`, and are tried again with growing pauses.
 */
export async function poll(work, { interval, signal, onError }) {
  let failures = 0;
  while (!signal.aborted) {
    await connection.up(signal);
    await visible(signal);
    if (signal.aborted) return;
    const begun = performance.now();
    try {
      await work();
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      failures += 1;
      onError(error);
      if (error.code === "PERMISSION_DENIED" || error.status === 404) return;
    }
    const took = performance.now() - begun;
    await pause(Math.min(failures ? interval * 2 ** failures : Math.max(interval, took * 9), SLOWEST), signal);
  }
}

function visible(signal) {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true, signal });
    signal.addEventListener("abort", resolve, { once: true });
  });
}

/** Wait so many milliseconds, or until `signal` aborts. */
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
