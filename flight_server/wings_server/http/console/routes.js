// Addresses within the page: `#/PAGE/PART/…?key=value`, each part percent-encoded.

/** The namespace that lists show where none is named. */
export const DEFAULT = "tenants/default/namespaces/default";

/** Return the address of a page. */
export function route(page, parts = [], keys = {}) {
  const path = ["#", page, ...parts.map(encodeURIComponent)].join("/");
  const query = new URLSearchParams(Object.entries(keys).filter(([, value]) => value !== "" && value !== null && value !== undefined)).toString();
  return query ? `${path}?${query}` : path;
}

/** Return the page, the parts and the keys of an address; what is not encoded well is taken as it is. */
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page, ...parts] = path.split("/").map(decoded);
  return { page: page || "overview", parts, keys: new URLSearchParams(query) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Change keys of the address in place, without drawing the page anew. */
export function remember(found, keys) {
  for (const [name, value] of Object.entries(keys)) {
    if (value) found.keys.set(name, value);
    else found.keys.delete(name);
  }
  history.replaceState(null, "", route(found.page, found.parts, Object.fromEntries(found.keys)));
}
