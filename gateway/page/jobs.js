/** The view #jobs: a table of jobs, a filter, and changes to all that it matches. */

import { bulk } from "./actions.js";
import { call } from "./api.js";
import { attr, button, buttons, copyButton, every, failureLine, h, list, noteLine, put, putAll, setState, table } from "./dom.js";
import { openJob } from "./drawer.js";
import { feed, now } from "./feed.js";
import { clock, count, duration, jobsAt, plural, shortId } from "./format.js";
import { word, words } from "./shell.js";

const PAGE = 50;
const REFRESH_MS = 5000;
const QUICK = [
  ["All", ""], ["Waiting", "state:queued"], ["Running", "state:in_progress"],
  ["Failed, last hour", "state:failed since:1h"], ["Cancelled, last hour", "state:cancelled since:1h"],
];
const COLUMNS = ["Job", "State", "Model", "Lane", "Submitted", "Wait", "Run", "Tokens", "Attempts", "Worker", "Error"];

/** Show the view. Returns `{end, changed(params)}`. */
export function jobsView(main, params) {
  const view = new Jobs(params);
  main.append(view.element);
  return view;
}

class Jobs {
  constructor(params) {
    this.search = h("input", {
      type: "search", id: "filter", "aria-label": "Filter of jobs", placeholder: "state:failed model:NAME since:1h", spellcheck: "false",
      autocomplete: "off", autocapitalize: "off", "aria-describedby": "filter-error",
    });
    this.error = failureLine({ id: "filter-error" });
    this.summary = noteLine();
    this.body = h("tbody");
    this.more = button("Show more", () => this.load(true));
    this.live = h("input", { type: "checkbox", checked: true });
    this.quick = h("div", { class: "quick", role: "group", "aria-label": "Quick filters" },
      QUICK.map(([text, filter]) => h("a", { class: "chip", href: jobsAt(filter), "data-filter": filter }, text)));
    const form = h("form", { role: "search", onsubmit: (event) => { event.preventDefault(); this.go(); } },
      this.search,
      h("button", { type: "submit", class: "primary" }, "Filter"));
    this.bulk = ["Cancel", "Retry"].map((verb) =>
      button(`${verb} matching …`, () => bulk(verb, this.filter, () => this.load())));
    const actions = buttons(
      this.bulk,
      copyButton("curl", () => `curl -s ${word(location.origin + this.path())}`),
      copyButton("CLI", () => `flotilla jobs ls ${words(this.filter)}`.trimEnd()),
      h("label", "check", this.live, "refresh every 5 s"));
    this.element = h("section", { class: "panel", "data-panel": "jobs", "aria-label": "Jobs" },
      form, this.error, this.quick, actions,
      table("Table of jobs", COLUMNS, this.body, "jobs"), this.summary, this.more);
    this.rest = every(REFRESH_MS, () => this.live.checked && !(this.jobs?.length > PAGE) && this.load());
    this.changed(params);
  }

  end = () => {
    this.rest();
    this.drawer?.close();
  };

  changed = (params) => {
    const filter = params.get("filter") || "";
    const job = params.get("job") || "";
    if (filter !== this.filter) {
      this.filter = this.search.value = filter;
      for (const chip of this.quick.children) attr(chip, "aria-current", chip.dataset.filter === filter ? "true" : null);
      for (const each of this.bulk) {
        each.disabled = !filter;
        attr(each, "title", filter ? null : "Type in a filter first");
      }
      this.load();
    }
    if (this.drawer && this.drawer.dataset.shown !== job) {
      const other = this.drawer;
      this.drawer = null;
      other.close();
    }
    if (job && !this.drawer) {
      const mine = this.drawer = openJob(job, () => this.load(), () => {
        if (this.drawer !== mine) return;
        this.drawer = null;
        if ((new URLSearchParams(location.hash.split("?")[1])).get("job") === job) location.hash = jobsAt(this.filter);
        this.body.querySelector(`[data-job="${CSS.escape(job)}"] a`)?.focus();
      });
    }
  };

  go() {
    const hash = jobsAt(this.search.value.trim());
    if (location.hash === hash) this.load();
    else location.hash = hash;
  }

  path(cursor = "") {
    const filter = this.filter ? `&filter=${encodeURIComponent(this.filter)}` : "";
    return `/jobs?limit=${PAGE}${filter}${cursor ? `&cursor=${cursor}` : ""}`;
  }

  async load(further = false) {
    const asked = this.filter;
    try {
      const page = await call(this.path(further ? this.next : ""));
      if (asked !== this.filter) return; // another filter was typed in since
      put(this.error, "");
      attr(this.search, "aria-invalid", null);
      this.jobs = further ? [...this.jobs, ...page.data] : page.data;
      this.next = page.next_cursor;
      this.more.hidden = !page.has_more;
      list(this.body, this.jobs, "id", (job) => jobRow(job, this));
      const shown = this.jobs.length ? `${plural(this.jobs.length, "job")} shown, newest first.` : "No job matches.";
      put(this.summary, `${shown}${page.has_more ? " There are more." : ""}${this.hint()}`);
    } catch (error) {
      if (asked !== this.filter) return;
      put(this.error, error.message);
      attr(this.search, "aria-invalid", error.status === 400 ? "true" : null);
    }
  }

  hint() {
    const others = feed.overview?.pools.some((pool) => pool.tenants.length > 1);
    return others && !/tenant:/.test(this.filter) ? " They are your key's; tenant:* shows all." : "";
  }
}

function jobRow(first, view) {
  const cells = COLUMNS.map((name) => h("td", { "data-label": name }));
  const [id, state, ...rest] = cells;
  const link = h("a", { class: "id", title: first.id }, shortId(first.id));
  const pill = h("span", "pill");
  id.append(link);
  state.append(pill);
  const element = h("tr", {
    "data-job": first.id,
    onclick: (event) => {
      if (!event.target.closest("a") && !String(getSelection())) location.hash = jobsAt(view.filter, first.id);
    },
  }, cells);
  return {
    element,
    update(job) {
      attr(link, "href", jobsAt(view.filter, job.id));
      setState(pill, job.state);
      const { attempts = [], error } = job;
      const began = attempts[0]?.started_at;
      const ended = job.finished_at || now();
      putAll(rest, [
        job.model, job.lane, clock(job.created_at),
        duration(Math.max(0, (began || ended) - job.created_at)), duration(began && Math.max(0, ended - began)),
        count(job.usage?.completion_tokens), attempts.length, attempts.at(-1)?.worker ?? "–",
        error ? `${error.code || error.type}: ${error.message}` : job.position ? `position ${job.position}` : "",
      ]);
    },
  };
}
