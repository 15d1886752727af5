/** The workers: state, one cell for each slot, KV cache, tokens, heartbeat, drain. */

import { drain } from "./actions.js";
import { attr, bar, button, figure, gauge, h, list, panel, put, s } from "./dom.js";
import { age, count, duration, allJobsAt, percent, plural, rate, shortId } from "./format.js";

const CELL = 10;
const SIDE = 8;
const PER_ROW = 64;
const SHOWN_JOBS = 6;

/** `wide`: with engine, adapters and jobs. */
export function workersPanel(wide) {
  const rows = h("ul");
  const element = panel("workers", "Workers", "/admin/overview", "flotilla workers ls", rows,
    h("p", "empty", "No worker is there; requests wait for one: flotilla worker --model NAME."));
  return {
    element,
    update(overview) {
      const sorted = [...overview.workers].sort(byNeed);
      const usual = Object.fromEntries(sorted.filter((each) => each.start_s).map((each) => [each.pool, each.start_s]));
      for (const worker of sorted) worker.usual_s = usual[worker.pool];
      list(rows, sorted, "id", (worker) => workerRow(worker, wide));
    },
  };
}

/** Lost workers first, then by name. */
function byNeed(one, other) {
  return (other.lost ? 1 : 0) - (one.lost ? 1 : 0) || one.id.localeCompare(other.id, "en", { numeric: true });
}

function workerRow(first, wide) {
  const id = first.id;
  const state = h("span", "pill");
  const phase = h("span", "phase");
  const cells = slotCells(id);
  const busy = figure();
  const of = h("span");
  const kv = bar();
  const kvText = figure();
  const tokens = figure();
  const heartbeat = figure();
  const go = button("Drain", () => drain(id), { class: "quiet", "aria-label": `Drain ${id}` });
  const more = wide ? details(id) : null;
  const row = {
    element: h("li", { class: "entry", "data-worker": id, "data-state": first.state },
      h("div", "who", h("h3", null, id), state, phase),
      h("div", "gauges",
        gauge(of, h("a", { href: allJobsAt(`state:in_progress worker:${id}`) }, busy)),
        gauge("KV cache", h("span", "kv", kv, kvText)),
        gauge("tokens / s", tokens), gauge("heartbeat", heartbeat), go),
      cells, more),
    update(worker) {
      const shown = worker.lost ? "lost" : worker.state;
      attr(row.element, "data-state", shown);
      attr(row.element, "title", [worker.engine, worker.reason].filter(Boolean).join(": "));
      put(state, shown);
      attr(state, "data-level", level(worker));
      put(phase, phaseOf(worker));
      cells.update(worker);
      busy.set(count(worker.busy));
      put(of, `busy of ${count(worker.slots)}`);
      kv.set(worker.kv_use);
      kvText.set(percent(worker.kv_use));
      tokens.set(rate(worker.output_tokens_per_s));
      heartbeat.set(age(worker.heartbeat_age_s));
      attr(heartbeat.element, "data-level", worker.lost ? "problem" : null);
      go.disabled = worker.lost || worker.state === "draining";
      more?.update(worker);
    },
  };
  return row;
}

/** "loading the model 41 s, usually 55 s" */
function phaseOf({ phase, phase_s: lasts, usual_s: usual }) {
  if (!phase || typeof lasts !== "number") return phase || "";
  return `${phase} ${duration(lasts)}${usual ? `, usually ${duration(usual)}` : ""}`;
}

function level(worker) {
  if (worker.lost) return "problem";
  return ["ready", "busy"].includes(worker.state) ? "plain" : "warning";
}

/** One cell for each slot, in rows: two paths, so that a thousand slots cost two elements. */
function slotCells(id) {
  const free = s("path", "free");
  const filled = s("path", "filled");
  const title = s("title");
  const element = s("svg", { class: "slots", role: "img" }, title, free, filled);
  let drawn = "";
  return {
    element,
    update({ slots, busy, lost }) {
      const what = `${slots} ${busy} ${lost}`;
      if (what === drawn) return;
      drawn = what;
      const rows = Math.max(1, Math.ceil(slots / PER_ROW));
      attr(element, "viewBox", `0 0 ${PER_ROW * CELL} ${rows * CELL}`);
      const shape = lost ? `l${SIDE} ${SIDE}m0-${SIDE}l-${SIDE} ${SIDE}` : `h${SIDE}v${SIDE}h-${SIDE}z`;
      const cell = (index) => `M${(index % PER_ROW) * CELL} ${Math.floor(index / PER_ROW) * CELL}${shape}`;
      const used = Math.min(busy, slots);
      attr(filled, "d", Array.from({ length: used }, (_, index) => cell(index)).join(""));
      attr(free, "d", Array.from({ length: Math.max(0, slots - used) }, (_, index) => cell(used + index)).join(""));
      element.classList.toggle("lost", Boolean(lost));
      put(title, lost ? `${id} is lost; it had ${plural(slots, "slot")}` : `${id}: ${busy} of ${plural(slots, "slot")} busy`);
    },
  };
}

function details(id) {
  const facts = h("span");
  const jobs = h("ul", { class: "job-links", "aria-label": `Jobs of ${id}` });
  const rest = h("a", { href: allJobsAt(`worker:${id}`) }, "All jobs of this worker");
  return {
    element: h("div", "details", facts, jobs, rest),
    update(worker) {
      const adapters = (worker.adapters || []).length ? `adapters ${worker.adapters.join(", ")}` : "";
      put(facts, [`pool ${worker.pool}`, worker.engine, adapters].filter(Boolean).join(" · "));
      list(jobs, (worker.jobs || []).slice(0, SHOWN_JOBS), (job) => job, (job) => ({
        element: h("li", null, h("a", { href: allJobsAt(`worker:${id}`, job), class: "id" }, shortId(job))),
      }));
    },
  };
}
