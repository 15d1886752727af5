/** The keyboard: `g` and a letter go to a view, `/` to the filter, `?` shows this. */

import { dialog, show } from "./dialog.js";
import { h } from "./dom.js";
import { feed } from "./feed.js";
import { place } from "./fleet.js";

const GO = { f: "fleet", w: "workers", j: "jobs", b: "batches", h: "webhooks", p: "playground", k: "keys" };
const PATIENCE_MS = 1500;
const HELP = [
  ["/", "go to the filter of jobs"],
  ...Object.entries(GO).map(([letter, view]) => [`g ${letter}`, view]),
  ["!", "go to what is wrong"],
  ["Enter", "open the job of the row, send the prompt"],
  ["?", "this help"],
];
const FILTER = [
  ["state:failed", "queued, in_progress, completed, failed, cancelled, expired; several with commas"],
  ["model: pool: lane: worker: tenant:", "by name; tenant:* are all tenants, for operators"],
  ["error:worker_lost", "by the code of the error"],
  ["since:1h until:10m ended:1h", "by the time of submission, or of the end"],
  ["-lane:flex", "not these"],
];

/** Act on keys. `go(view)` shows a view at once. */
export function startKeyboard(go) {
  let wentAt = 0;
  document.getElementById("help").addEventListener("click", help);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (Date.now() - wentAt < PATIENCE_MS && GO[event.key]) go(GO[event.key]);
    else if (event.key === "/") filter(go);
    else if (event.key === "?") help();
    else if (event.key === "!") worst(go);
    else {
      wentAt = event.key === "g" ? Date.now() : 0;
      return;
    }
    wentAt = 0;
    event.preventDefault();
  });
}

function typing(element) {
  return element.closest("input, textarea, select, [contenteditable]") !== null;
}

function filter(go) {
  if (!document.getElementById("filter")) go("jobs");
  document.getElementById("filter").focus();
}

function worst(go) {
  go("fleet");
  const at = place(feed.overview?.verdict.problems || []);
  const panel = document.querySelector(`[data-panel="${at}"]`) || document.getElementById("problems");
  panel.scrollIntoView({ block: "center" });
  panel.querySelector("button, a")?.focus();
}

function help() {
  const rows = (pairs, tag) => h("dl", "help",
    pairs.flatMap(([term, text]) => [h("dt", null, h(tag, null, term)), h("dd", null, text)]));
  show(dialog("Keyboard and filter", null, rows(HELP, "kbd"),
    h("h3", null, "The filter of jobs"), rows(FILTER, "code")));
}
