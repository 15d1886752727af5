/** Calls of the gateway's API, with the key that was typed in, and streams of events. */

const BASE = new URL("../", import.meta.url);
const KEY = "flotilla-key";

/** An answer that is an error. Status 0: there was no answer. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key of this tab; empty if there is none. */
export function key() {
  return sessionStorage.getItem(KEY) || "";
}

/** Keep a key until the tab is closed; empty: forget it. */
export function setKey(value) {
  sessionStorage.setItem(KEY, value);
  document.dispatchEvent(new CustomEvent("key-changed"));
}

/** The address that a client has to use. */
export function address(path) {
  return new URL(path.replace(/^\//, ""), BASE).href;
}

/** The response to a request; ApiError for an error. `body` is sent as JSON. */
export async function request(path, { method = "GET", body, headers, signal } = {}) {
  const sent = { ...headers };
  const used = key();
  if (used) sent.authorization = `Bearer ${used}`;
  if (body !== undefined) sent["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(address(path), {
      method, signal, headers: sent, cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The gateway can't be reached.");
  }
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new CustomEvent("key-needed", { detail: used }));
  throw await failure(response);
}

/** The JSON of an answer. */
export async function call(path, options) {
  const response = await request(path, options);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** The JSON of the answer to a POST. */
export function post(path, body) {
  return call(path, { method: "POST", body });
}

async function failure(response) {
  const body = await response.json().catch(() => null); // not JSON: the status has to do
  return new ApiError(response.status, body?.error?.message || `The gateway answered with status ${response.status}.`);
}

/** Each event and comment of a response of server-sent events: `{raw, event, id, data, comment}`. */
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true }).replaceAll("\r\n", "\n");
      for (;;) {
        const tail = rest.startsWith(":") ? "\n" : "\n\n"; // a comment has no empty line behind it
        const end = rest.indexOf(tail);
        if (end < 0) break;
        const raw = rest.slice(0, end);
        rest = rest.slice(end + tail.length);
        if (raw) yield parsed(raw);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** One block of an event stream. `data` is null where it has none. */
function parsed(raw) {
  const found = { raw, event: "message", id: "", data: null, comment: "" };
  for (const line of raw.split("\n")) {
    const at = line.indexOf(":");
    const name = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (at === 0) found.comment = value;
    else if (name === "data") found.data = found.data === null ? value : `${found.data}\n${value}`;
    else if (name === "event" || name === "id") found[name] = value;
  }
  return found;
}

/** The text that an event of a job adds to its first choice. */
export function textOf(event) {
  if (!event.data || event.data === "[DONE]") return "";
  const choice = (JSON.parse(event.data).choices || []).find((each) => !each.index && !each.prompt);
  return choice ? choice.text ?? choice.delta?.content ?? "" : "";
}
