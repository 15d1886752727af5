/** The view #keys: whose keys there are, and what they have used. Never the keys themselves. */

import { call } from "./api.js";
import { button, copyButton, h, put, table } from "./dom.js";
import { clock, count, jobsAt } from "./format.js";

const COLUMNS = ["Tenant", "Keys", "Jobs kept", "Last job", "Requests", "Failed", "Prompt tokens", "Output tokens"];

/** Show the view. Returns the function that ends it. */
export function keysView(main) {
  const body = h("tbody");
  const note = h("p", { class: "note", role: "status" }, "Reading …");
  main.append(h("section", { class: "panel", "data-panel": "keys", "aria-label": "Keys and usage" },
    h("div", { class: "buttons" }, button("Refresh", () => load()),
      copyButton("curl", `curl -s ${location.origin}/admin/keys`), copyButton("CLI", "flotilla keys ls")),
    note,
    table("Table of keys", COLUMNS, body)));

  async function load() {
    try {
      const { data } = await call("/admin/keys");
      body.replaceChildren(...data.map(tenantRow));
      const since = data.map((each) => each.usage?.since).filter(Boolean);
      put(note, `Usage is that of the jobs that are still kept${since.length ? `, since ${clock(Math.min(...since))}` : ""}. FLOTILLA_API_KEYS has the keys.`);
    } catch (error) {
      put(note, error.message);
    }
  }
  load();
  return () => {};
}

function tenantRow({ name, tenant, operator, keys, jobs_kept: kept, last_job_at: last, usage }) {
  const number = (value) => h("td", { class: "number" }, count(value));
  return h("tr", { "data-tenant": tenant },
    h("th", { scope: "row" }, h("a", { href: jobsAt(`tenant:${tenant}`) }, name || tenant), operator ? " (operator)" : ""),
    number(keys), number(kept), h("td", null, clock(last)),
    number(usage?.requests), number(usage?.failed), number(usage?.prompt_tokens), number(usage?.completion_tokens));
}
