/** The view #keys: whose keys there are, and what they have used. Never the keys themselves. */

import { call } from "./api.js";
import { h, listView, table } from "./dom.js";
import { clock, count, jobsAt } from "./format.js";

const COLUMNS = ["Tenant", "Keys", "Jobs kept", "Last job", "Requests", "Failed", "Prompt tokens", "Output tokens"];

/** Show the view. */
export function keysView(main) {
  const body = h("tbody");
  listView(main, ["keys", "Keys and usage", "/admin/tenants", "flotilla keys tenants"], table("Table of keys", COLUMNS, body), false, async () => {
    const { data } = await call("/admin/tenants");
    body.replaceChildren(...data.map(tenantRow));
    const since = data.map((each) => each.usage?.since).filter(Boolean);
    return `Usage is that of the jobs that are still kept${since.length ? `, since ${clock(Math.min(...since))}` : ""}. flotilla keys create makes one.`;
  });
}

function tenantRow({ tenant, operator, keys, jobs_kept: kept, last_job_at: last, usage }) {
  const number = (value) => h("td", "number", count(value));
  return h("tr", { "data-tenant": tenant },
    h("th", { scope: "row" }, h("a", { href: jobsAt(`tenant:${tenant}`) }, tenant), operator ? " (operator)" : ""),
    number(keys), number(kept), h("td", null, clock(last)),
    number(usage?.requests), number(usage?.failed), number(usage?.prompt_tokens), number(usage?.completion_tokens));
}
