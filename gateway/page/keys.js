/** The view #keys: tenants, their keys, limits and use, and what operators have changed. A secret is shown once. */

import { call, post } from "./api.js";
import { confirm, dialog, show } from "./dialog.js";
import { button, buttons, copyButton, h, list, listView, put } from "./dom.js";
import { now } from "./feed.js";
import { clock, duration, jobsAt, plural } from "./format.js";
import { limitFields, limitsLine } from "./limits.js";
import { usagePanel } from "./usage.js";

const PATH = "/admin/keys";
const SCOPES = ["infer", "jobs", "priority", "admin:read", "admin:write"];
const MOST_KEYS = 1000;
const MOST_TENANTS = 200;

/** Show the view. */
export function keysView(main) {
  const cards = h("div");
  const make = button("New key …", () => create("", load), { hidden: true });
  const search = h("input", { type: "search", "aria-label": "Only tenants with", placeholder: "Tenant", hidden: true, oninput: () => draw() });
  let [tenants, changes] = [[]];
  const draw = () => list(cards, tenants.filter((each) => each.tenant.includes(search.value.trim())).slice(0, MOST_TENANTS), "tenant", (each) => tenantCard(each, load));
  const load = listView(main, ["keys", "Keys and limits", PATH, "flotilla keys ls"], cards, false, async () => {
    const [{ data }, { data: keys, has_more: more }] = await Promise.all([call("/admin/tenants"), call(`${PATH}?limit=${MOST_KEYS}`)]);
    make.hidden = search.hidden = false;
    const of = Map.groupBy(keys, (each) => each.tenant);
    tenants = data.map((each) => ({ ...each, made: of.get(each.tenant) || [] }));
    draw();
    if (changes) changes();
    else if (cards.isConnected) changes = changesPanel(main); // operators may read them, too
    const few = data.length > MOST_TENANTS ? ` ${MOST_TENANTS} at most are shown: type a part of a name.` : "";
    return `${plural(data.length, "tenant")}, ${plural(keys.length, "key")} that can be changed here.${few}${more ? " There are more keys: flotilla keys ls." : ""} Days and months are those of UTC.`;
  }, make, search);
  usagePanel(main);
}

function changesPanel(main) {
  const lines = h("ul", "letters");
  return listView(main, ["changes", "Latest changes", "/admin/audit", "flotilla audit"], lines, false, async () => {
    const { data } = await call("/admin/audit?limit=10");
    list(lines, data, "id", ({ at, action, subject, tenant, key, reason, details }) => ({
      element: h("li", null, h("time", null, clock(at)), h("b", null, action), h("span", "id", subject),
        h("span", null, `${details.of_tenant ? `of ${details.of_tenant} ` : ""}by ${tenant}${key ? ` (${key})` : ""}${reason ? `: ${reason}` : ""}`)),
    }));
    return data.length ? "By operators, newest first." : "Operators have changed nothing yet.";
  });
}

function tenantCard({ tenant }, load) {
  const [operator, about] = [h("span", "pill", "operator"), h("span", "models")];
  const line = limitsLine();
  const rows = h("ul", "letters");
  const path = `/admin/tenants/${encodeURIComponent(tenant)}`;
  const row = {
    element: h("article", { "data-tenant": tenant },
      h("div", "pool-head", h("h3", null, h("a", { href: jobsAt(`tenant:${tenant}`) }, tenant)), operator, about,
        button("New key …", () => create(tenant, load), { class: "quiet", "aria-label": `New key of ${tenant}` }),
        button("Limits …", () => limit(tenant, path, row.limits, load), { class: "quiet", "aria-label": `Limits of ${tenant}` })),
      line, rows),
    update(found) {
      row.limits = found.limits;
      operator.hidden = !found.operator;
      const last = found.last_job_at ? ` · last job ${clock(found.last_job_at)}` : "";
      put(about, `${plural(found.keys, "key")} · ${plural(found.jobs_kept, "job")} kept${last}`);
      line.update(found);
      list(rows, found.made, "id", (each) => keyRow(each, load));
    },
  };
  return row;
}

function keyRow({ id }, load) {
  const [name, state, about] = [h("b"), h("span", { class: "pill", "data-level": "problem" }), h("span")];
  const line = limitsLine();
  const path = `${PATH}/${encodeURIComponent(id)}`;
  const act = (verb, work) => button(`${verb} …`, work, { class: "quiet", "aria-label": `${verb} ${id}` });
  const row = {
    element: h("li", { "data-key": id }, name, h("span", "id", id), state, about, line,
      buttons(act("Limits", () => limit(id, path, row.key.limits, load)),
        act("Rotate", () => rotate(row.key, path, load)), act("Revoke", () => revoke(row.key, path, load)))),
    update(key) {
      row.key = key;
      const refused = key.expires_at && key.expires_at <= now() ? "expired" : "";
      put(name, key.name);
      state.hidden = !refused;
      put(state, refused);
      put(about, `${key.hint}… · ${key.scopes.join(", ")} · ${key.models.join(", ") || "all models"} · made ${duration(Math.max(0, now() - key.created_at))} ago by ${key.created_by}${
        key.expires_at ? ` · expires ${clock(key.expires_at)}` : ""}`);
      line.update(key);
    },
  };
  return row;
}

function create(tenant, after) {
  const field = (text, name, props) => h("label", null, text, h("input", { name, autocomplete: "off", ...props }));
  const texts = h("div", "ask",
    h("div", "row", field("Tenant", "tenant", { value: tenant, required: true, maxlength: 64 }), field("Name", "name", { maxlength: 64 }),
      field("Expires in days", "days", { type: "number", min: 0.001, step: "any", placeholder: "never" })),
    field("Models", "models", { placeholder: "all; else their names with commas" }));
  const scopes = h("fieldset", "checks", h("legend", null, "Scopes"), SCOPES.map((name, index) =>
    h("label", "check", h("input", { type: "checkbox", value: name, checked: index < 2 }), name)));
  const limits = limitFields();
  secretly({
    title: "New key", verb: "Make the key", fields: [texts, scopes, limits], after,
    text: "For a tenant, new or known. Who has admin:write can get all other scopes.",
    made: (reason) => {
      const { tenant: { value: whose }, name, models, days } = Object.fromEntries([...texts.querySelectorAll("input")].map((each) => [each.name, each]));
      return post(PATH, {
        tenant: whose.trim(), name: name.value.trim(), reason, limits: limits.values(),
        scopes: [...scopes.querySelectorAll(":checked")].map((each) => each.value),
        models: models.value.split(",").map((each) => each.trim()).filter(Boolean),
        expires_at: days.value ? now() + days.value * 86400 : undefined,
      });
    },
  });
}

function rotate({ id, name, tenant }, path, after) {
  secretly({
    title: "Rotate the key", verb: "Rotate", danger: true, after, made: (reason) => post(`${path}/rotate`, { reason }),
    text: `${name || id} of ${tenant} gets another secret. The old one is refused at once.`,
  });
}

/** Ask, do what gives a secret, and show that. */
function secretly({ made, after, ...question }) {
  let key;
  confirm({
    ...question,
    run: async (reason) => {
      key = await made(reason);
      return "";
    },
    after: () => {
      const copy = copyButton("Copy", () => key.secret);
      show(dialog("The secret", { "data-stays": true }, h("p", null, `Of ${key.name || key.id}, a key of ${key.tenant}. It is shown now, and not again: Redis holds only its digest.`),
        h("pre", "output secret", key.secret), buttons(copy)));
      copy.focus();
      after();
    },
  });
}

function revoke({ id, name, tenant }, path, after) {
  confirm({
    title: "Revoke the key", verb: "Revoke", danger: true, after,
    text: `${name || id} of ${tenant} is refused by every gateway within a second, for ever. Its jobs go on.`,
    run: async (reason) => {
      await call(path, { method: "DELETE", body: { reason } });
      return `${name || id} is revoked.`;
    },
  });
}

function limit(name, path, limits, after) {
  const fields = limitFields(limits);
  confirm({
    title: "Set limits", verb: "Set limits", fields: [fields.element], after,
    text: `Of ${name}, in place of those that it has; they hold at every gateway within a second.`,
    run: async (reason) => {
      await call(`${path}/limits`, { method: "PUT", body: { ...fields.values(), reason } });
      return `${name} has these limits.`;
    },
  });
}
