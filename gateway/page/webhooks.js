/** The view #webhooks: this key's endpoints, the last deliveries to each, and these again. */

import { call, post } from "./api.js";
import { notice } from "./dialog.js";
import { button, buttons, h, list, listView, put, setState } from "./dom.js";
import { clock, plural } from "./format.js";

const PATH = "/v1/webhook_endpoints";

/** Show the view. Returns the function that ends it. */
export function webhooksView(main) {
  const cards = h("div");
  return listView(main, ["webhooks", "Webhooks", PATH, "flotilla webhook ls"], cards, true, async (load) => {
    const { data } = await call(PATH);
    for (const each of data) each.sent = (await call(`${PATH}/${each.id}/deliveries?limit=10`)).data;
    list(cards, data, "id", (each) => endpointCard(`${PATH}/${each.id}`, load));
    return data.length ? `${plural(data.length, "endpoint")} of this key.`
      : "There is no endpoint of this key yet: flotilla webhook create URL";
  });
}

function endpointCard(path, load) {
  const [name, about] = [h("h3"), h("p", "models")];
  const rows = h("ul", "letters");
  const act = (what, body) => post(`${path}/${what}`, body).then(({ status_code: status }) => {
    notice(status ? `It has answered ${status}.` : "It is sent again.");
    load();
  }, ({ message }) => notice(message));
  return {
    element: h("article", null, h("div", "pool-head", name, button("Test", () => act("test", { event_type: "job.completed" }))), about, rows),
    update(endpoint) {
      put(name, endpoint.name);
      put(about, `${endpoint.url} · ${endpoint.disabled ? `disabled: ${endpoint.disabled}` : endpoint.event_types.join(", ")}`);
      list(rows, endpoint.sent, "id", (each) => deliveryRow(each, act));
    },
  };
}

function deliveryRow({ id, created_at: at, event_type: event, subject }, act) {
  const state = h("span", "pill");
  const told = h("span");
  return {
    element: h("li", null, h("time", null, clock(at)), event, h("span", "id", subject), state, told,
      buttons(button("Resend", () => act(`deliveries/${id}/resend`), "quiet"))),
    update({ state: now, tries, next_try_at: next }) {
      setState(state, now);
      const last = tries.at(-1);
      put(told, last ? `${last.status_code || last.error}, ${plural(tries.length, "try", "tries")}${next ? `, next ${clock(next)}` : ""}` : "");
    },
  };
}
