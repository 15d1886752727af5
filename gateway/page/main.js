/** The page: which view is shown, and the key. */

import { key, setKey } from "./api.js";
import { deadView } from "./dead.js";
import { dialog, notice, show } from "./dialog.js";
import { attr, button, h } from "./dom.js";
import * as feed from "./feed.js";
import { fleetView, workersView } from "./fleet.js";
import { jobsView } from "./jobs.js";
import { startKeyboard } from "./keyboard.js";
import { keysView } from "./keys.js";
import { playgroundView } from "./playground.js";
import * as ribbon from "./ribbon.js";

const VIEWS = {
  fleet: ["Fleet", fleetView], workers: ["Workers", workersView], jobs: ["Jobs", jobsView],
  dead: ["Dead letters", deadView], playground: ["Playground", playgroundView], keys: ["Keys", keysView],
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
  if (shown) shown.end();
  const main = document.getElementById("main");
  const [title, view] = VIEWS[name];
  main.replaceChildren(h("h2", { class: "unseen" }, title));
  main.dataset.view = name;
  if (focus) {
    main.focus({ preventScroll: true }); // a view may put it elsewhere
    scrollTo(0, 0);
  }
  const made = view(main, params);
  shown = typeof made === "function" ? { name, end: made } : { name, ...made };
  for (const link of document.querySelectorAll("nav a")) {
    attr(link, "aria-current", link.hash === `#${name}` ? "page" : null);
  }
}

function askForKey(why = "") {
  if (document.getElementById("key-dialog")) return;
  const field = h("input", { type: "password", name: "key", autocomplete: "off", spellcheck: "false" });
  const made = dialog("Sign in", { id: "key-dialog", class: "question" },
    h("form", { method: "dialog", onsubmit: (event) => {
      event.preventDefault();
      made.close();
      setKey(field.value.trim());
      shown.end();
      shown = null;
      render(false);
    } },
    why ? h("p", { role: "alert" }, why) : null,
    h("p", null, "It is kept in this tab only, until the tab is closed. Operators' keys also show the fleet."),
    h("label", null, "API key", field),
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Use this key"),
      button("Forget the key", () => { field.value = ""; made.close(); setKey(""); notice("The key is forgotten."); }))));
  show(made);
  field.focus();
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
