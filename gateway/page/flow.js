/** The flow strip: what waits, what runs, and the tokens that go through the engines. */

import { figure, h, panel } from "./dom.js";
import { count, allJobsAt, rate } from "./format.js";

const sum = (pools, name) => pools.reduce((total, pool) => total + (pool[name] || 0), 0);

const STAGES = [
  { name: "Waiting", filter: "state:queued", value: (o) => count(sum(o.pools, "waiting")) },
  { name: "Running", filter: "state:in_progress", value: (o) => count(sum(o.pools, "running")) },
  { name: "Output tokens / s", value: (o) => rate(o.rates.output_tokens) },
  { name: "Prompt tokens / s", value: (o) => rate(o.rates.prompt_tokens) },
];

export function flowPanel() {
  const stages = STAGES.map(made);
  const element = panel("flow", "Flow", "/admin/overview", "flotilla status", h("ol", "flow", stages.map((stage) => h("li", null, stage))));
  return {
    element,
    update: (overview) => stages.forEach((stage) => stage.update(overview)),
  };
}

/** The numbers of jobs lead to these jobs. */
function made(stage) {
  const number = figure();
  const link = stage.filter && { href: allJobsAt(stage.filter) };
  const element = h(link ? "a" : "div", link, h("span", "label", stage.name), number);
  return { element, update: (overview) => number.set(stage.value(overview)) };
}
