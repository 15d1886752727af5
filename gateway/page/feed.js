/** The overview, once per second from /admin/stream, as long as the page is visible. */

import { ApiError, events, request } from "./api.js";

const STALE_MS = 4000;
const SILENT_MS = 15000; // a connection that is open and brings nothing
const LONGEST_WAIT_MS = 10000;

/** `state`: connecting, live, stale, key (none or a wrong one), forbidden (not an operator's). */
export const feed = { overview: null, state: "connecting", error: "", receivedAt: 0 };

const watchers = new Set();
let aheadS = 0;
let abort = null;
let waitMs = 1000;
let timer = 0;

/** The time in Unix seconds, by the fleet's clock. */
export function now() {
  return Date.now() / 1e3 + aheadS;
}

/** Call `watcher(feed)` now and after each change. Returns a function that ends it. */
export function watch(watcher) {
  watchers.add(watcher);
  watcher(feed);
  return () => watchers.delete(watcher);
}

/** Connect, and stay connected. */
export function start() {
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : connect()));
  document.addEventListener("key-changed", () => {
    stop();
    set("connecting");
    connect();
  });
  setInterval(() => {
    const oldMs = Date.now() - feed.receivedAt;
    if (feed.state === "stale" || (feed.state === "live" && oldMs > STALE_MS)) set("stale"); // its age goes on
    if (feed.state === "stale" && oldMs > SILENT_MS && !timer) connect();
  }, 1000);
  connect();
}

function stop() {
  clearTimeout(timer);
  timer = 0;
  abort?.abort();
  abort = null;
}

async function connect() {
  stop();
  const mine = (abort = new AbortController());
  try {
    const response = await request("/admin/stream", { signal: mine.signal });
    waitMs = 1000;
    feed.receivedAt = Date.now();
    for await (const event of events(response)) {
      if (mine.signal.aborted) return;
      if (event.event === "overview" && event.data) receive(JSON.parse(event.data));
    }
    throw new ApiError(0, "The gateway has ended the stream.");
  } catch (error) {
    if (mine.signal.aborted) return;
    feed.error = error.message;
    if (error.status === 401) return set("key");
    if (error.status === 403) return set("forbidden");
    set(feed.overview ? "stale" : "connecting");
    timer = setTimeout(connect, waitMs);
    waitMs = Math.min(LONGEST_WAIT_MS, waitMs * 1.6);
  }
}

function receive(overview) {
  feed.overview = overview;
  feed.receivedAt = Date.now();
  feed.error = "";
  aheadS = overview.at - Date.now() / 1e3;
  set("live");
}

function set(state) {
  feed.state = state;
  for (const watcher of watchers) watcher(feed);
}
