/** The autoscaler: how many workers there should be, how many there are, and why. */

import { call } from "./api.js";
import { attr, figure, h, list, panel, put, term, tried } from "./dom.js";
import { age, clock, count } from "./format.js";

const SHOWN = 5;

export function scalePanel() {
  const pools = h("div");
  const element = panel("scale", "Autoscaler", "/admin/autoscale", "flotilla scale explain", pools,
    h("p", "empty", "No pool is scaled: flotilla up --autoscale 0:3"));
  return {
    element,
    update(overview) {
      list(pools, overview.pools.filter((pool) => pool.scale), "pool", scaleRow);
    },
  };
}

function scaleRow(first) {
  const name = first.pool;
  const wanted = figure();
  const actual = figure();
  const reason = h("p", "reason");
  const old = h("span", "since");
  const decisions = h("ol", "decisions");
  const inputs = h("p", "note");
  const more = h("details", null, h("summary", null, "Last decisions"), decisions, inputs);
  const load = () => tried(inputs, async () => {
    const found = (await call("/admin/autoscale")).data.find((each) => each.pool === name);
    if (!found) return;
    put(inputs, `From ${found.limits.min} to ${found.limits.max} workers. ${figures(found.inputs)}`);
    list(decisions, found.history.slice(0, SHOWN), "at_s", (each) => ({
      element: h("li", null, h("time", null, clock(each.at_s)), ` ${each.before ?? 0} → ${each.wanted}: ${each.reason}`),
    }));
  });
  more.addEventListener("toggle", () => more.open && load());
  const row = {
    element: h("article", { "data-scale": name, "aria-label": `Autoscaler of ${name}` },
      h("div", "pool-head", h("h3", null, name), old),
      h("dl", "figures", term("should have", wanted), term("has ready", actual)),
      reason, more),
    update(pool) {
      wanted.set(count(pool.scale.wanted));
      actual.set(count(pool.workers_ready));
      put(reason, pool.scale.reason);
      put(old, pool.scale.silent ? `decided ${age(pool.scale.age_s)} ago` : "");
      attr(row.element, "data-level", pool.scale.wanted === pool.workers_ready ? null : "warning");
    },
  };
  return row;
}

function figures(inputs) {
  const shown = Object.entries(inputs || {}).filter(([name, value]) => typeof value === "number" && !name.endsWith("at_s"));
  return shown.map(([name, value]) => `${name} ${Number(value.toPrecision(4))}`).join(", ");
}
