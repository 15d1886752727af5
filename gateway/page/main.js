/** The page: which view is shown, and the key. */

import { key, setKey } from "./api.js";
import { batchesView } from "./batches.js";
import { confirm } from "./dialog.js";
import { attr, button, h } from "./dom.js";
import * as feed from "./feed.js";
import { fleetView, workersView } from "./fleet.js";
import { jobsView } from "./jobs.js";
import { startKeyboard } from "./keyboard.js";
import { keysView } from "./keys.js";
import { playgroundView } from "./playground.js";
import * as ribbon from "./ribbon.js";
import { webhooksView } from "./webhooks.js";

const VIEWS = {
  fleet: fleetView, workers: workersView, jobs: jobsView, batches: batchesView,
  webhooks: webhooksView, playground: playgroundView, keys: keysView,
};

let shown = null; // {name, end, changed}
let rendered = ""; // the hash that is shown
let refused; // the key for which the question was asked

/** The view and the parameters that the address names. */
function place() {
  const [name, query] = location.hash.replace(/^#/, "").split("?");
  return { name: VIEWS[name] ? name : "fleet", params: new URLSearchParams(query || "") };
}

function render(focus) {
  rendered = location.hash;
  const { name, params } = place();
  if (shown && shown.name === name && shown.changed) {
    shown.changed(params);
    return;
  }
  shown?.end?.();
  const main = document.getElementById("main");
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.hash === `#${name}`;
    attr(link, "aria-current", here ? "page" : null);
    if (here) main.replaceChildren(h("h2", { class: "unseen" }, link.firstChild.data));
  }
  main.dataset.view = name;
  if (focus) {
    main.focus({ preventScroll: true }); // a view may put it elsewhere
    scrollTo(0, 0);
  }
  const made = VIEWS[name](main, params);
  shown = typeof made === "function" ? { name, end: made } : { name, ...made };
}

function askForKey(why = "") {
  if (document.querySelector("[name=key]")) return;
  const field = h("input", { type: "password", name: "key", autocomplete: "off", spellcheck: "false" });
  const forget = button("Forget the key", () => { field.value = ""; field.form.requestSubmit(); });
  confirm({
    title: "Sign in", verb: "Use this key", reasoned: false,
    fields: [why ? h("p", { role: "alert" }, why) : "", h("label", null, "API key", field), forget],
    text: "It is kept in this tab only, until the tab is closed. Operators' keys also show the fleet.",
    run: async () => (field.value.trim() ? "" : "The key is forgotten."),
    after: () => {
      setKey(field.value.trim());
      shown.end?.();
      shown = null;
      render(false);
    },
  });
}

ribbon.start();
feed.start();
startKeyboard((view) => {
  location.hash = view;
  render(true);
});
document.getElementById("sign-in").addEventListener("click", () => askForKey());
document.addEventListener("key-needed", ({ detail: used }) => {
  if (used !== key() || refused === used) return; // once for each key, and only for the present one
  refused = used;
  askForKey(used ? "This key is unknown to the gateway." : "");
});
addEventListener("hashchange", () => rendered !== location.hash && render(true));
render(false);
