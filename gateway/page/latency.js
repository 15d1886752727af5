/** Latency: the percentiles of the jobs that ended in the last minutes. */

import { attr, figure, h, panel, put, s } from "./dom.js";
import { short } from "./format.js";

const ROWS = [
  ["ttft_s", "First token", "TTFT: from submit to the first token"],
  ["itl_s", "Between tokens", "ITL: from one token to the next"],
  ["queue_wait_s", "Queue wait", "from submit to the claim by a worker"],
  ["e2e_s", "Whole job", "E2E: from submit to the end"],
];
const PERCENTILES = ["p50", "p95", "p99"];
const WIDTH = 120;

/** `{element, update(overview)}` */
export function latencyPanel() {
  const rows = ROWS.map(([name, title, meaning]) => latencyRow(name, title, meaning));
  const note = h("p", { class: "note" });
  const head = h("tr", null, h("td"), PERCENTILES.map((text) => h("th", { scope: "col" }, text)),
    h("th", { scope: "col", class: "wide-only" }, "p50 to p99"));
  const element = panel("latency", "Latency", "/admin/overview", "flotilla top",
    h("table", { class: "latency" }, h("thead", null, head), h("tbody", null, rows.map((row) => row.element))), note);
  return {
    element,
    update(overview) {
      const latency = overview.latency || {};
      const all = ROWS.flatMap(([name]) => PERCENTILES.map((p) => (latency[name] || {})[p])).filter((value) => value > 0);
      const range = all.length ? [Math.min(...all), Math.max(...all)] : [0.001, 1];
      rows.forEach((row) => row.update(latency, range));
      put(note, latency.source ? `Of ${latency.source}.` : "Of the jobs that ended in the last minutes.");
    },
  };
}

function latencyRow(name, title, meaning) {
  const figures = PERCENTILES.map(() => figure());
  const line = s("line", { y1: 5, y2: 5 });
  const dot = s("circle", { cy: 5, r: 3 });
  const svg = s("svg", { class: "range", viewBox: `0 0 ${WIDTH} 10`, "aria-hidden": "true" }, line, dot);
  return {
    element: h("tr", null, h("th", { scope: "row", title: meaning }, title),
      figures.map((each) => h("td", null, each.element)), h("td", { class: "wide-only" }, svg)),
    update(latency, [least, most]) {
      const values = PERCENTILES.map((p) => (latency[name] || {})[p]);
      figures.forEach((each, index) => each.set(short(values[index])));
      svg.classList.toggle("none", !(values[0] > 0));
      if (!(values[0] > 0)) return;
      const span = Math.log(most / least) || 1;
      const x = (value) => 4 + (Math.log(value / least) / span) * (WIDTH - 8); // logarithmic
      attr(dot, "cx", x(values[0]).toFixed(1));
      attr(line, "x1", x(values[0]).toFixed(1));
      attr(line, "x2", x(values[2] || values[0]).toFixed(1));
    },
  };
}
