// Elements from data. Text is always a text node: what comes from a topic is never markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element: `h("a", {href: "#/x", onclick: f, class: "tag"}, "text", node, [nodes])`.
 * Properties that begin with "on" are listeners; false, null and undefined leave one out.
 */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Make an element of SVG; see `h`. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replace all that an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set an element's text where it differs, so that what did not change is not laid out again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Return a panel with a heading, things beside the heading, and a body. */
export function panel(title, beside, ...body) {
  return h("section", { class: "panel", "aria-label": title },
    h("header", {}, h("h2", {}, title), beside), ...body);
}

/** Return a labelled field of a form. */
export function field(label, control, className = "") {
  return h("label", { class: `field ${className}` }, label, control);
}

/** Call a function once its calls have paused for so many milliseconds. */
export function debounced(run, milliseconds = 250) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...values), milliseconds);
  };
}
