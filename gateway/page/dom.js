/** Elements: made, changed only where they differ, and kept in lists by key. */

const kept = new WeakMap(); // the rows of each list
const SVG = "http://www.w3.org/2000/svg";

/** An element. `children` may be `{element}`. `props`: its class, or `on...` are listeners and the rest attributes; null leaves one out. */
export function h(tag, props, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(element, props, children) {
  for (const [name, value] of Object.entries(named(props))) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else attr(element, name, value);
  }
  element.append(...children.flat().filter((child) => (child ?? null) !== null).map((child) => child.element || child));
  return element;
}

const named = (props) => (typeof props === "string" ? { class: props } : props || {});

/** Set an attribute, or take it away: null and false; true is an empty one. */
export function attr(element, name, value) {
  if ((value ?? false) === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/** Set the text of an element. */
export function put(element, text) {
  const shown = String(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/**
 * Make the children of `parent` those of `items`, in their order.
 *
 * `make(item)` returns `{element, update(item)}` for a key that is new; `update` may be left out. `key`: a field, or a function.
 */
export function list(parent, items, key, make) {
  const keyOf = (item) => (typeof key === "string" ? item[key] : key(item));
  const before = kept.get(parent) || new Map();
  const now = new Map();
  const names = new Set(items.map(keyOf));
  for (const [name, row] of before) if (!names.has(name)) row.element.remove();
  let place = parent.firstChild;
  for (const item of items) {
    const name = keyOf(item);
    const row = now.get(name) || before.get(name) || make(item);
    now.set(name, row);
    row.update?.(item);
    if (row.element === place) place = place.nextSibling;
    else parent.insertBefore(row.element, place);
  }
  kept.set(parent, now);
}

/** A number in a box of reserved width, so that nothing moves when it grows. */
export function figure(unit = "", width = 6) {
  const number = h("span", `figure w${width}`, "–");
  const element = unit ? h("span", "with-unit", number, h("i", null, unit)) : number;
  return { element, set: (text) => put(number, text) };
}

/** A bar that is filled from 0 to 1, and then by what is `bad`. The figure beside it has the value as text. */
export function bar() {
  const [fill, rest] = ["", "bad"].map((name) => s("rect", { height: 1, class: name }));
  return {
    element: s("svg", { class: "bar-of", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" }, fill, rest),
    set(share, bad) {
      const filled = Math.min(1, share || 0);
      attr(fill, "width", filled.toFixed(3));
      attr(rest, "x", filled.toFixed(3));
      attr(rest, "width", (bad || 0).toFixed(3));
    },
  };
}

/** A value below its name. */
export function gauge(name, ...value) {
  return h("div", "cell", h("span", "label", name), ...value);
}

/** Have the browser save a blob as a file. */
export function save(name, blob) {
  const link = h("a", { download: name, href: URL.createObjectURL(blob) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A button. */
export function button(text, onclick, props) {
  return h("button", { type: "button", onclick, ...named(props) }, text);
}

/** Copy text, and say so in the button for a moment. */
export function copyButton(name, text) {
  const made = button(name, async () => {
    const value = typeof text === "function" ? text() : text;
    let done = "Copied";
    try {
      await navigator.clipboard.writeText(value);
    } catch {
      done = "Not allowed";
    }
    put(made, done);
    setTimeout(() => put(made, name), 1500);
  }, { class: "quiet", title: typeof text === "string" ? text : null });
  return made;
}

/** A table that scrolls within its frame. */
export function table(name, columns, body, props) {
  const head = h("tr", null, columns.map((text) => h("th", { scope: "col" }, text)));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name },
    h("table", props, h("thead", null, head), body));
}

/** Texts of the cells of a table's row. */
export function putAll(cells, texts) {
  cells.forEach((cell, index) => put(cell, texts[index]));
}

/** The states in which a job or a batch does not change any more. */
export const ENDED = ["completed", "failed", "cancelled", "expired"];

/** The state of a job or a batch. */
export function setState(pill, state) {
  put(pill, state);
  const bad = state === "failed" || state === "expired";
  attr(pill, "data-level", bad ? "problem" : state === "in_progress" ? "busy" : "plain");
}

/** A name and its value, in a `dl`. */
export function term(name, value) {
  return h("div", null, h("dt", null, name), h("dd", null, value));
}

/** Buttons in a row. */
export function buttons(...children) {
  return h("div", "buttons", ...children);
}

/** What a list has, or why it could not be read. */
export function noteLine() {
  return h("p", { class: "note", role: "status" }, "Reading …");
}

/** Where errors are shown, and read out. */
export function failureLine(props) {
  return h("p", { class: "failure", role: "alert", ...props });
}

/** Do `work`; its error is shown in `element`. */
export async function tried(element, work) {
  try {
    await work();
  } catch (error) {
    put(element, error.message);
  }
}

/** Do `work` again and again while the page is visible. Returns the function that ends it. */
export function every(ms, work) {
  const timer = setInterval(() => document.hidden || work(), ms);
  return () => clearInterval(timer);
}

/**
 * A view of one list in a panel: `read(load)` fills `content` and returns its note.
 *
 * `live`: it is read every 5 s, and the function that ends this is returned; else by a button, or by the function that is returned.
 */
export function listView(main, head, content, live, read, ...more) {
  const note = noteLine();
  const load = () => tried(note, async () => put(note, await read(load)));
  main.append(panel(...head, live ? null : buttons(button("Refresh", load), more), note, ...[content].flat()));
  load();
  return live ? every(5000, load) : load;
}

/** A panel: a section with a title, and the same data as a command to copy. */
export function panel(name, title, curl, command, ...children) {
  return h("section", { class: "panel", "data-panel": name, "aria-label": title },
    h("div", "panel-head", h("h2", null, title),
      h("div", { class: "copies", role: "group", "aria-label": `${title}: copy as` },
        copyButton("curl", `curl -s ${location.origin}${curl}`), copyButton("CLI", command))),
    ...children);
}
