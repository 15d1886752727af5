/** The view #playground: one prompt to one model, or to two side by side. */

import { address, call } from "./api.js";
import { Answer } from "./answer.js";
import { LANGUAGES, program } from "./code.js";
import { attr, button, buttons, copyButton, failureLine, h, put, tried } from "./dom.js";

const SAMPLE = "What is Flotilla?";
const TABS = ["Answer", "Raw events", "Code"];
const LANES = ["default", "priority", "flex"];

let given = null; // what it opens with next

/** Open the playground with the request of a job. */
export function prefill(body) {
  given = body;
  location.hash = "playground";
}

/** Show the view. Returns the function that ends it. */
export function playgroundView(main) {
  const view = new Playground();
  main.append(view.element);
  view.prompt.focus({ preventScroll: true });
  return () => view.answers.forEach((answer) => answer.drop());
}

class Playground {
  constructor() {
    const number = (value, props) => h("input", { type: "number", value, ...props });
    this.prompt = h("textarea", { rows: 3, name: "prompt", onkeydown: (event) => this.typed(event) }, SAMPLE);
    this.system = h("input", { name: "system", autocomplete: "off", placeholder: "none" });
    this.temperature = number("0", { min: 0, max: 2, step: 0.1 });
    this.most = number("256", { min: 1, step: 1 });
    this.lane = h("select", null, LANES.map((lane) => h("option", null, lane)));
    this.models = [0, 1].map((index) => h("select", { "aria-label": index ? "Second model" : "Model", onchange: () => this.code() }));
    this.answers = this.models.map((_, index) => new Answer(index));
    this.compare = h("input", { type: "checkbox", onchange: () => this.compared() });
    this.failure = failureLine();
    this.send = h("button", { type: "submit", class: "primary" }, "Send");
    this.drop = button("Drop connection", () => this.running().forEach((answer) => answer.drop()));
    this.resume = button("Resume", () => this.answers.forEach((answer) => answer.dropped && answer.resume()));
    this.language = LANGUAGES[0];
    this.codeText = h("pre", { class: "output", tabindex: 0, "aria-label": "Code" });
    this.second = h("label", { hidden: true }, "Second model", this.models[1]);
    const form = h("form", { class: "panel ask", onsubmit: (event) => { event.preventDefault(); this.start(); }, oninput: () => this.code() },
      h("div", "row", h("label", null, "Model", this.models[0]), this.second,
        h("label", "check", this.compare, "Compare two models")),
      h("label", null, "Prompt", this.prompt),
      h("label", null, "System prompt", this.system),
      h("div", "row", h("label", null, "Temperature", this.temperature), h("label", null, "Max tokens", this.most), h("label", null, "Lane", this.lane)),
      buttons(this.send, this.drop, this.resume), this.failure);
    const languages = h("div", { class: "copies", role: "group", "aria-label": "Language" },
      LANGUAGES.map((name) => button(name, () => { this.language = name; this.code(); }, { class: "quiet", "data-language": name })),
      copyButton("Copy", () => this.codeText.textContent));
    const parts = (name) => h("div", "answers", this.answers.map((answer) => answer[name]));
    this.panes = [parts("text"), parts("raw"), [languages, this.codeText]].map((inside, index) =>
      h("div", { id: `pane-${index}`, role: "tabpanel", "aria-label": TABS[index] }, inside));
    this.tabs = TABS.map((name, index) => button(name, () => this.tab(index), { role: "tab", "aria-controls": `pane-${index}`, class: "quiet" }));
    const tablist = h("div", { role: "tablist", "aria-label": "What came", class: "copies", onkeydown: (event) => {
      const step = { ArrowLeft: 2, ArrowRight: 1 }[event.key];
      if (step) this.tab((this.shown + step) % TABS.length, true);
    } }, this.tabs);
    const result = h("section", { class: "panel result", "aria-label": "Answer" }, tablist, parts("state"), this.panes);
    this.element = h("div", "playground", form, result);
    for (const answer of this.answers) answer.changed = () => this.update();
    this.given = given;
    given = null;
    this.tab(0);
    this.compared();
    if (this.given) this.fill(this.given);
    this.load();
  }

  tab(shown, focus = false) {
    this.shown = shown;
    this.tabs.forEach((tab, index) => {
      attr(tab, "aria-selected", String(index === shown));
      attr(tab, "tabindex", index === shown ? 0 : -1);
      this.panes[index].hidden = index !== shown;
    });
    if (focus) this.tabs[shown].focus();
  }

  /** Take over the request of a job. */
  fill({ messages, temperature, max_tokens: most }) {
    const text = (role) => messages?.findLast((message) => message.role === role)?.content ?? "";
    const [user, system] = [text("user"), text("system")];
    this.prompt.value = typeof user === "string" ? user : JSON.stringify(user);
    this.system.value = typeof system === "string" ? system : "";
    if (temperature !== undefined) this.temperature.value = temperature;
    if (most) this.most.value = most;
  }

  async load() {
    await tried(this.failure, async () => {
      const { data } = await call("/v1/models");
      for (const [index, select] of this.models.entries()) {
        select.replaceChildren(...data.map((model) => h("option", { value: model.id },
          model.id + (model.flotilla?.ready === false ? " (no worker is ready)" : ""))));
        if (data[index]) select.value = data[index].id;
      }
      if (data.some((model) => model.id === this.given?.model)) this.models[0].value = this.given.model;
      if (!data.length) put(this.failure, "No worker has registered a model yet.");
    });
    this.code();
  }

  body(index = 0) {
    const messages = [{ role: "user", content: this.prompt.value }];
    if (this.system.value) messages.unshift({ role: "system", content: this.system.value });
    const body = { model: this.models[index].value, messages, stream: true };
    if (this.temperature.value !== "") body.temperature = Number(this.temperature.value);
    if (this.most.value) body.max_tokens = Number(this.most.value);
    if (this.lane.value !== "default") body.service_tier = this.lane.value;
    return body;
  }

  start() {
    put(this.failure, "");
    if (this.running().length) return;
    const used = this.compare.checked ? this.answers : this.answers.slice(0, 1);
    used.forEach((answer, index) => answer.start(this.body(index)));
  }

  running() {
    return this.answers.filter((answer) => answer.running);
  }

  update() {
    const running = this.running().length > 0;
    this.send.disabled = running;
    this.drop.disabled = !running;
    this.resume.disabled = !this.answers.some((answer) => answer.dropped);
  }

  compared() {
    this.second.hidden = !this.compare.checked;
    for (const name of ["state", "text", "raw"]) this.answers[1][name].hidden = !this.compare.checked;
    this.element.classList.toggle("two", this.compare.checked);
    this.update();
  }

  code() {
    for (const each of this.element.querySelectorAll("[data-language]")) {
      attr(each, "aria-pressed", String(each.dataset.language === this.language));
    }
    put(this.codeText, program(this.language, address("").replace(/\/$/, ""), this.body()));
  }

  typed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.start();
  }
}
