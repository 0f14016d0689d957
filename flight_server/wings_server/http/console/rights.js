// What the caller's token may do, so that a page shows no form that the server would refuse.

import { call, token } from "./api.js";

let known = { of: undefined, grants: null };

/** Return whether the caller has a right on a topic's full name, or on the server, which is "*". */
export async function may(right, name) {
  const of = token.get();
  if (known.of !== of || known.grants === null) {
    known = { of, grants: call("GET", "/v1/health").then((found) => found.principal.grants, () => []) };
  }
  return (await known.grants).some((grant) => {
    const [of, pattern] = grant.split("=", 2);
    if (of === "admin" && pattern === "*") return true;
    return of === right && (pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern);
  });
}
