/** The panel of use: what the last 30 days have used, by days, tenants or keys, and models. */

import { call } from "./api.js";
import { attr, bar, button, h, listView, put, table } from "./dom.js";
import { amount, count, duration, plural } from "./format.js";
import { limitsLine } from "./limits.js";
import { fileLink } from "./link.js";

const BY = ["day", "tenant", "model", "day,tenant", "day,model"];
const FIGURES = ["Jobs", "Failed", "Input tokens", "Cached", "Output tokens", "Run"];
const MOST = 100;

const tokens = (row) => row.input_tokens + row.output_tokens;

/** Add the panel. A key that is no operator's gets the use of its own tenant, with its limits. */
export function usagePanel(main) {
  const [limits, rows] = [h("div"), h("div")];
  const csv = fileLink("usage.csv");
  let [by, own] = [BY[0], false];
  const column = (name) => (own ? name.replace("tenant", "key") : name);
  const choices = BY.map((each) => button("", () => { by = each; load(); }, { class: "quiet" }));
  const named = () => choices.forEach((choice, index) => {
    put(choice, `By ${column(BY[index]).replace(",", " and ")}`);
    attr(choice, "aria-pressed", String(BY[index] === by));
  });
  named();
  const load = listView(main, ["use", "Use of the last 30 days", "/admin/usage", "flotilla usage"], [limits, rows], false, async () => {
    const asked = by;
    const path = () => `${own ? "/v1" : "/admin"}/usage?by=${column(asked)}`;
    const found = await call(path()).catch((error) => {
      own = error.status === 403;
      if (!own) throw error;
      return call(path());
    });
    if (asked !== by) return "Reading …"; // another one was chosen since
    named();
    csv.set("CSV", `${path()}&format=csv`);
    limits.replaceChildren(...Object.entries(found.limits || {}).filter(([, of]) => of).map(([name, of]) => {
      const line = limitsLine(`This ${name}:`);
      line.update(of);
      return line.element;
    }));
    const sorted = found.data.sort((one, other) => (other.day || "").localeCompare(one.day || "") || tokens(other) - tokens(one));
    const most = Math.max(1, ...sorted.map(tokens));
    const body = h("tbody", null, sorted.slice(0, MOST).map((row) => usageRow(row, found.by, most)));
    const columns = [...found.by.map((name) => name[0].toUpperCase() + name.slice(1)), "Share", ...FIGURES];
    rows.replaceChildren(sorted.length ? table("Table of use", columns, body, "use") : "");
    return `${plural(found.total.jobs, "job")} with ${amount(tokens(found.total))} tokens from ${found.from} to ${found.to} (UTC).${
      sorted.length > MOST ? ` ${MOST} of ${count(sorted.length)} rows are shown; the CSV has all.` : ""}`;
  }, h("div", { class: "copies", role: "group", "aria-label": "Added up by" }, choices), h("span", "details", csv));
}

function usageRow(row, by, most) {
  const share = bar();
  share.set(tokens(row) / most);
  const names = by.map((name) => h("th", { scope: "row" }, row[name] || "–"));
  const figures = [count(row.jobs), count(row.failed), amount(row.input_tokens), amount(row.input_cached_tokens), amount(row.output_tokens), duration(row.engine_s)];
  return h("tr", null, names, h("td", null, share), figures.map((text) => h("td", "number", text)));
}
