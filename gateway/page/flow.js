/** The flow strip: what comes in, waits, runs and leaves. Each stage is a link to its jobs. */

import { figure, h, panel } from "./dom.js";
import { count, allJobsAt, rate } from "./format.js";

const sum = (pools, name) => pools.reduce((total, pool) => total + (pool[name] || 0), 0);

const STAGES = [
  { name: "Submitted / s", filter: "", value: (o) => rate(o.rates.submitted) },
  { name: "Waiting", filter: "state:queued", value: (o) => count(sum(o.pools, "waiting")) },
  { name: "Running", filter: "state:in_progress", value: (o) => count(sum(o.pools, "running")) },
  { name: "Completed / s", filter: "state:completed", value: (o) => rate(o.rates.completed) },
  { name: "Failed / s", filter: "state:failed since:1h", value: (o) => rate(o.rates.failed), alarm: (o) => o.verdict.problems.some((each) => each.kind === "jobs_fail") },
  { name: "Cancelled / s", filter: "state:cancelled since:1h", value: (o) => rate(o.rates.cancelled) },
];
const TOKENS = [
  { name: "Output tokens / s", value: (o) => rate(o.rates.output_tokens) },
  { name: "Prompt tokens / s", value: (o) => rate(o.rates.prompt_tokens) },
];

export function flowPanel() {
  const stages = STAGES.map((stage) => made(stage, "a"));
  const element = panel("flow", "Flow", "/admin/overview", "flotilla status", h("ol", "flow", stages.map((stage) => h("li", null, stage))));
  return {
    element,
    update: (overview) => stages.forEach((stage) => stage.update(overview)),
  };
}

/** The tokens that go through the engines. */
export function throughputPanel() {
  const parts = TOKENS.map((part) => made(part, "div"));
  const element = panel("throughput", "Throughput", "/admin/overview", "flotilla status", h("div", "tokens", parts));
  return { element, update: (overview) => parts.forEach((part) => part.update(overview)) };
}

function made(stage, tag) {
  const number = figure();
  const element = h(tag, tag === "a" && { href: allJobsAt(stage.filter) }, h("span", "label", stage.name), number);
  return {
    element,
    update(overview) {
      number.set(stage.value(overview));
      if (stage.alarm) element.classList.toggle("alarm", stage.alarm(overview));
    },
  };
}
