/** Dialogs: a question before a change, and messages after it. */

import { button, buttons, failureLine, h, put, tried } from "./dom.js";

/** Show a dialog until it is closed. It is removed then, and `closed` is called. */
export function show(dialog, closed) {
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed?.();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A dialog with a title and a button that closes it; a click beside it does, too, without `data-stays`. */
export function dialog(title, props, ...children) {
  const made = h("dialog", { "aria-label": title, ...props },
    h("div", "dialog-head", h("h2", null, title),
      button("Close", () => made.close(), "quiet")),
    ...children);
  made.addEventListener("click", (event) => {
    const { left, right, top, bottom } = made.getBoundingClientRect();
    const inside = event.clientX >= left && event.clientX <= right && event.clientY >= top && event.clientY <= bottom;
    if (event.target === made && !inside && !("stays" in made.dataset)) made.close();
  });
  return made;
}

/** Show what has happened at the lower edge, until the next message. */
export function notice(text) {
  const element = document.getElementById("notice");
  put(element, text);
  element.hidden = !text;
  clearTimeout(element.timer);
  element.timer = setTimeout(() => (element.hidden = true), 8000);
}

/**
 * Ask before a change: what will happen, why it is done, then do it.
 *
 * `preview()` returns `{content, possible}`; `run(reason)` makes the change and returns the message.
 */
export function confirm({ title, text, verb, danger = false, preview, run, after, fields = [], reasoned = true }) {
  const shown = h("div", { class: "preview", role: "status" }, preview ? "Reading …" : "");
  const failure = failureLine();
  const reason = h("input", { name: "reason", maxlength: 200, autocomplete: "off" });
  const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, verb);
  const form = h("form", { method: "dialog" }, text ? h("p", null, text) : null, shown, ...fields,
    reasoned ? h("label", null, "Reason", reason) : null, failure,
    buttons(go, button("Do nothing", () => made.close())));
  const made = dialog(title, { class: "question" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    put(failure, "");
    await tried(failure, async () => {
      notice(await run(reason.value.trim() || undefined));
      made.close();
      after?.();
    });
    go.disabled = false;
  });
  show(made);
  (form.querySelector("textarea, input:not([type=radio])") || go).focus();
  if (preview) {
    go.disabled = true;
    tried(failure, async () => {
      const { content, possible } = await preview().finally(() => shown.replaceChildren());
      shown.append(...[content].flat());
      go.disabled = !possible;
    });
  }
}
