/** The queue of each pool: what waits, in which lanes, whose, and whether it is paused. */

import { pause } from "./actions.js";
import { attr, bar, button, figure, h, list, panel, put, term } from "./dom.js";
import { age, allJobsAt, count, duration, jobsAt, percent } from "./format.js";

const LANES = ["priority", "default", "flex"];

export function queuesPanel() {
  const pools = h("div");
  const element = panel("queues", "Queue", "/admin/pools", "flotilla queue ls", pools,
    h("p", "empty", "There is no pool yet. A worker makes one: flotilla worker --model NAME."));
  return {
    element,
    update: (overview) => list(pools, overview.pools, "pool", poolCard),
  };
}

function poolCard(first) {
  const name = first.pool;
  const waiting = figure();
  const running = figure();
  const oldest = figure();
  const estimate = figure();
  const of = h("dt");
  const state = h("span", "pill");
  const toggle = button("", () => pause(name, stopped(row.pool)), "quiet");
  const lanes = h("ul", { class: "lanes", "aria-label": `Lanes of ${name}` });
  const tenants = h("ul", { class: "tenants", "aria-label": `Tenants of ${name}` });
  const models = h("span", "models");
  const reason = h("p", "reason");
  const row = {
    pool: first,
    element: h("article", { "data-pool": name, "aria-label": `Pool ${name}` },
      h("div", "pool-head", h("h3", null, name), state, models, toggle),
      h("dl", "figures",
        term("waiting", h("a", { href: allJobsAt(`state:queued model:${first.models[0] || name}`) }, waiting)),
        h("div", null, of, h("dd", null, running)),
        term("oldest wait", oldest),
        term("wait of a new job", estimate)),
      reason, h("div", "split", lanes, tenants)),
    update(pool) {
      row.pool = pool;
      waiting.set(count(pool.waiting));
      running.set(count(pool.running));
      put(of, `running of ${count(pool.slots)}`);
      oldest.set(pool.waiting ? age(pool.oldest_wait_s) : "–");
      estimate.set(duration(pool.estimated_wait_s));
      put(state, stateOf(pool));
      attr(state, "data-level", stopped(pool) || !pool.workers_ready ? "warning" : "plain");
      put(toggle, `${stopped(pool) ? "Resume" : "Pause"} ${name}`);
      put(reason, pool.wait_reason || "");
      put(models, pool.models.filter((model) => model !== name).join(", "));
      row.most = Math.max(1, ...pool.lanes.map((lane) => lane.waiting));
      list(lanes, ordered(pool.lanes), "lane", (lane) => laneRow(lane, row));
      list(tenants, pool.tenants.slice(0, 5), "tenant", tenantRow);
    },
  };
  return row;
}

const stopped = (pool) => Boolean(pool.paused || pool.intake_stopped);

function stateOf(pool) {
  if (pool.intake_stopped) return "intake stopped";
  if (pool.paused) return "paused";
  return pool.workers_ready ? "open" : "no worker ready";
}

function ordered(lanes) {
  const shown = lanes.filter(({ lane, waiting }) => waiting || LANES.includes(lane));
  return shown.sort((one, other) => LANES.indexOf(one.lane) - LANES.indexOf(other.lane));
}

function laneRow(first, pool) {
  const number = figure("", 9);
  const share = bar();
  return {
    element: h("li", null, h("span", "label", first.lane), share, number),
    update(lane) {
      number.set(count(lane.waiting));
      share.set(lane.waiting / pool.most);
    },
  };
}

function tenantRow(first) {
  const waiting = figure("waiting", 9);
  const link = h("a", { class: "label", href: jobsAt(`tenant:${first.tenant}`) }, first.tenant);
  return {
    element: h("li", null, link, waiting),
    update(tenant) {
      waiting.set(count(tenant.waiting));
      attr(link, "title", `served lately: ${percent(tenant.served)}`);
    },
  };
}
