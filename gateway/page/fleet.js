/** The views of the fleet: all panels, each an `{element, update(overview)}`, and the workers alone. */

import { h } from "./dom.js";
import { watch } from "./feed.js";
import { flowPanel } from "./flow.js";
import { queuesPanel } from "./queues.js";
import { scalePanel } from "./scale.js";
import { workersPanel } from "./workers.js";

/** The view #fleet. */
export function fleetView(main) {
  const panels = {
    flow: flowPanel(), queues: queuesPanel(), workers: workersPanel(false),
    scale: scalePanel(),
  };
  const waiting = h("p", "panel empty", "Waiting for the first data.");
  const column = (...names) => h("div", null, names.map((each) => panels[each].element));
  const grid = h("div", "grid", panels.flow,
    column("queues", "workers"), column("scale"));
  grid.hidden = true;
  main.append(waiting, grid);
  return watch(({ overview, state }) => {
    grid.hidden = !overview;
    waiting.hidden = Boolean(overview) || state === "key" || state === "forbidden";
    if (!overview) return;
    for (const panel of Object.values(panels)) panel.update(overview);
    const at = place(overview.verdict.problems || []);
    grid.classList.toggle("incident", Boolean(at));
    for (const [name, { element }] of Object.entries(panels)) element.classList.toggle("cause", name === at);
  });
}

/** The view #workers. */
export function workersView(main) {
  const panel = workersPanel(true);
  main.append(panel.element);
  return watch(({ overview }) => overview && panel.update(overview));
}

/** The panel that the first problem is about; empty if there is none. */
export function place(problems) {
  const first = problems.find((each) => each.level === "problem") || problems[0];
  if (!first || /^(redis|gateway)/.test(first.kind)) return "";
  if (first.worker) return "workers";
  if (/^(auto)?scal/.test(first.kind)) return "scale";
  return first.pool ? "queues" : "flow";
}
