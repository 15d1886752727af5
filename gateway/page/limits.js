/** Limits of keys and tenants: shown with what is used of them, and typed in. */

import { attr, bar, h, put } from "./dom.js";
import { amount } from "./format.js";

const LIMITS = {
  requests_per_minute: "requests per minute", tokens_per_minute: "tokens per minute", concurrent_requests: "concurrent requests",
  tokens_per_day: "tokens per day", tokens_per_month: "tokens per month",
};
const BUDGETS = [["tokens_per_day", "tokens_today", "today"], ["tokens_per_month", "tokens_this_month", "this month"]];
const NEARLY = 0.9;

/** `{element, update({limits, used})}`: budgets with bars, then the other limits. */
export function limitsLine(name = "") {
  const budgets = BUDGETS.map(([limit, use, when]) => {
    const [share, text] = [bar(), h("span")];
    return {
      element: h("span", "budget", share, text),
      update({ limits, used }) {
        const [most, has] = [limits[limit], used[use]];
        attr(share.element, "hidden", !most);
        const nearly = has > NEARLY * most;
        share.set(nearly ? 0 : has / most, nearly && Math.min(1, has / most));
        put(text, `${amount(has)}${most ? ` of ${amount(most)}` : ""} tokens ${when}`);
        attr(text, "class", most && nearly ? "failure" : null);
      },
    };
  });
  const others = h("span");
  return {
    element: h("div", "details", name, budgets, others),
    update(of) {
      for (const each of budgets) each.update(of);
      const found = Object.entries(LIMITS).slice(0, 3).filter(([limit]) => of.limits[limit]);
      const none = Object.values(of.limits).some(Boolean) ? "" : "no limits";
      put(others, found.map(([limit, text]) => `${amount(of.limits[limit])} ${text}`).join(", ") || none);
    },
  };
}

/** Fields for limits. `{element, values()}` */
export function limitFields(limits = {}) {
  const element = h("fieldset", "row", h("legend", null, "Limits (empty: none)"),
    Object.entries(LIMITS).map(([name, text]) => h("label", null, text[0].toUpperCase() + text.slice(1),
      h("input", { type: "number", name, min: 0, max: 1e12, value: limits[name] || null }))));
  return {
    element,
    values: () => Object.fromEntries([...element.querySelectorAll("input")].map(({ name, value }) => [name, Number(value)])),
  };
}
