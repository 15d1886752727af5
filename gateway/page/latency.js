/** Latency: the percentiles of the jobs that ended in the last minutes. */

import { attr, figure, h, panel, put } from "./dom.js";
import { clock, short } from "./format.js";

const ROWS = [
  ["ttft_s", "First token", "TTFT: from submit to the first token"],
  ["itl_s", "Between tokens", "ITL: from one token to the next"],
  ["queue_wait_s", "Queue wait", "from submit to the claim by a worker"],
  ["e2e_s", "Whole job", "E2E: from submit to the end"],
];
const PERCENTILES = ["p50", "p95", "p99"];

export function latencyPanel() {
  const figures = ROWS.map(() => PERCENTILES.map(() => figure()));
  const note = h("p", "note");
  const head = h("tr", null, h("td"), PERCENTILES.map((text) => h("th", { scope: "col" }, text)));
  const names = ROWS.map(([, title]) => h("th", { scope: "row" }, title));
  const body = ROWS.map((_, row) => h("tr", null, names[row], figures[row].map((each) => h("td", null, each))));
  const element = panel("latency", "Latency", "/admin/overview", "flotilla status",
    h("table", "latency", h("thead", null, head), h("tbody", null, body)), note);
  return {
    element,
    update({ latency }) {
      ROWS.forEach(([name, , meaning], row) => {
        attr(names[row], "title", `${meaning}; of ${latency.source?.[name] || "the last minutes"}`);
        PERCENTILES.forEach((p, column) => figures[row][column].set(short(latency[name]?.[p])));
      });
      put(note, latency.since ? `Since ${clock(latency.since)}.` : "Since the processes began.");
    },
  };
}
