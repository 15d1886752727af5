/** The drawer of a job: why, its timeline, attempts, usage, output, and what can be done. */

import { cancelJob, retryJob } from "./actions.js";
import { call, events, request, textOf } from "./api.js";
import { confirm, dialog, notice, show } from "./dialog.js";
import { button, buttons, copyButton, ENDED, every, failureLine, h, list, put, putAll, s, setState, table, term, tried } from "./dom.js";
import { now } from "./feed.js";
import { clock, count, duration, jobsAt } from "./format.js";
import { prefill } from "./playground.js";
import { word, words } from "./shell.js";

const REFRESH_MS = 2000;
const REPEATABLE = ["failed", "cancelled", "expired"];
const CHAT = "/v1/chat/completions";

/** Open the drawer. `changed` is called after a change, `closed` when it is closed. */
export function openJob(id, changed, closed) {
  const drawer = new Drawer(id, changed);
  return show(drawer.element, () => {
    drawer.end();
    closed();
  });
}

class Drawer {
  constructor(id, changed) {
    this.id = id;
    this.changed = changed;
    this.foreign = false; // another tenant's: an operator sees it without prompt and answer
    this.state = h("span", "pill");
    this.why = h("p", { class: "why", "data-why": "" }, "…");
    this.facts = h("dl", "facts");
    this.bar = s("svg", { class: "timeline", viewBox: "0 0 600 34", preserveAspectRatio: "none", role: "img", "aria-label": "Timeline" });
    this.key = h("p", "timeline-key");
    this.events = h("ol", "events");
    this.attempts = h("tbody");
    this.about = h("dl", "figures about");
    this.failure = failureLine();
    this.cancel = button("Cancel …", () => cancelJob(id, this.foreign, () => this.reload()), "danger");
    this.retry = button("Retry", () => this.again());
    this.edit = button("Retry with edited body …", () => this.edited());
    this.play = button("Open in playground", () => this.toPlayground());
    [this.output, this.body] = ["Output", "Request"].map((name) =>
      h("pre", { class: "output", tabindex: 0, hidden: true, "aria-label": name }));
    this.showOutput = button("Show output", () => this.follow(), "quiet");
    this.showBody = button("Show request", () => this.request(), "quiet");
    this.element = dialog("Job", { id: "drawer", "data-shown": id },
      h("div", "id-line", h("code", null, id), this.state),
      this.why, this.facts, this.failure,
      buttons(this.cancel, this.retry, this.edit, this.play,
        copyButton("Copy id", word(id)), copyButton("CLI", `flotilla jobs why ${words(id)}`),
        copyButton("curl", `curl -s ${word(`${location.origin}/jobs/${encodeURIComponent(id)}`)}`)),
      h("h3", null, "Timeline"), this.bar, this.key, this.events,
      h("h3", null, "Job"), this.about,
      h("h3", null, "Attempts"),
      table("Attempts", ["No.", "Worker", "Began", "Took", "Outcome"], this.attempts),
      h("h3", null, "Request and output"),
      buttons(this.showBody, this.showOutput), this.body, this.output);
    this.reload();
    this.rest = every(REFRESH_MS, () => this.job && !ENDED.includes(this.job.state) && this.load());
  }

  end() {
    this.rest();
    this.abort?.abort();
  }

  reload() {
    this.load();
    this.changed();
  }

  get path() {
    return this.foreign ? `/admin/jobs/${this.id}` : `/jobs/${this.id}`;
  }

  async load() {
    try {
      this.job = await this.read();
      put(this.failure, "");
    } catch (error) {
      put(this.failure, error.message);
      put(this.why, "");
      this.cancel.hidden = this.retry.hidden = this.edit.hidden = this.play.hidden = true;
      return;
    }
    this.showJob();
    const [timeline, why] = await Promise.allSettled([call(`${this.path}/timeline`), call(`${this.path}/why`)]);
    if (timeline.value) this.showTimeline(timeline.value);
    put(this.why, why.value?.sentence ?? why.reason.message);
    if (why.value) {
      this.facts.replaceChildren(...(why.value.facts || []).flatMap((fact) =>
        [h("dt", null, fact.name.replaceAll("_", " ")), h("dd", null, fact.text)]));
    }
  }

  /** The job; where it is not one of this key's, as an operator sees it. */
  async read() {
    try {
      return await call(this.path);
    } catch (error) {
      if (error.status !== 404 || this.foreign) throw error;
      const job = await call(`/admin/jobs/${this.id}`).catch(() => { throw error; });
      this.foreign = true;
      return job;
    }
  }

  showJob() {
    const { job } = this;
    const ended = ENDED.includes(job.state);
    setState(this.state, job.state);
    this.cancel.hidden = ended;
    this.retry.hidden = !REPEATABLE.includes(job.state);
    this.edit.hidden = this.foreign || !ended;
    this.play.hidden = this.foreign || job.endpoint !== CHAT;
    this.showBody.hidden = this.showOutput.hidden = this.foreign;
    put(this.showOutput, ended ? "Show output" : "Follow output");
    const usage = job.usage || job.usage_so_far;
    const about = [
      ["Model", job.model], ["Pool", job.pool], ["Lane", job.lane], ["Endpoint", job.endpoint],
      ["Tenant", job.tenant], ["Submitted", clock(job.created_at)],
      ["Position", job.position && `${count(job.position)}, about ${duration(job.estimated_wait_s)}`],
      ["Prompt tokens", usage && count(usage.prompt_tokens)],
      ["Output tokens", usage && count(usage.completion_tokens)],
      ["Deadline", job.deadline_at && clock(job.deadline_at)],
      ["Kept until", job.expires_at && clock(job.expires_at)],
      ["Repeats", job.retried_from && h("a", { href: jobsAt("", job.retried_from), class: "id" }, job.retried_from)],
      ["Trace", job.trace_id], ["Request id", job.request_id],
      ["Error", job.error && `${job.error.code || job.error.type}: ${job.error.message}`],
      ...Object.entries(job.metadata || {}),
    ];
    this.about.replaceChildren(...about.filter(([, value]) => value)
      .map(([name, value]) => h("div", { class: name === "Error" ? "all" : null }, h("dt", null, name), h("dd", null, value))));
    list(this.attempts, (job.attempts || []).map((attempt, number) => ({ ...attempt, number: number + 1 })),
      "number", attemptRow);
  }

  showTimeline(timeline) {
    const { spans } = timeline;
    const until = (span) => span.end ?? now();
    const said = (span) => `${span.name} ${duration(until(span) - span.start)}`;
    const begin = spans.length ? spans[0].start : this.job.created_at;
    const whole = Math.max(0.001, Math.max(...spans.map(until), begin) - begin);
    const x = (at) => ((at - begin) / whole) * 600;
    this.bar.replaceChildren(
      s("title", null, spans.map(said).join(", ")),
      ...spans.map((span) => s("rect", {
        class: `span-${span.name}`, x: x(span.start).toFixed(2), y: 4, height: 26,
        width: Math.max(1.5, x(until(span)) - x(span.start) - 0.5).toFixed(2),
      })));
    this.key.replaceChildren(...spans.map((span) => h("span", null,
      h("i", `swatch span-${span.name}`), said(span),
      span.worker ? ` on ${span.worker}` : "")));
    list(this.events, timeline.events, ({ at, event, text }) => `${at} ${event} ${text}`, ({ at, event, text }) => ({
      element: h("li", null, h("time", null, clock(at, true)), h("b", null, event.replaceAll("_", " ")), h("span", null, text)),
    }));
  }

  again() {
    return tried(this.failure, async () => {
      const id = await retryJob(this.id, this.foreign);
      notice(id ? `Submitted again as ${id}.` : "Submitted again.");
      this.changed();
      if (id && !this.foreign) location.hash = jobsAt("", id);
    });
  }

  edited() {
    const text = h("textarea", { rows: 16, spellcheck: "false", name: "body" });
    confirm({
      title: "Retry with edited body", verb: "Submit as a new job", reasoned: false, fields: [h("label", null, "Body", text)],
      preview: async () => {
        text.value = JSON.stringify(await this.bodyOf(), null, 2);
        return { possible: true, content: [] };
      },
      run: async () => {
        const id = await retryJob(this.id, false, parsed(text.value));
        location.hash = jobsAt("", id);
        return `Submitted as ${id}.`;
      },
    });
  }

  async bodyOf() {
    return (await call(`/jobs/${this.id}/request`)).body;
  }

  toPlayground() {
    return tried(this.failure, async () => prefill(await this.bodyOf()));
  }

  request() {
    this.body.hidden = !this.body.hidden;
    put(this.showBody, this.body.hidden ? "Show request" : "Hide request");
    if (!this.body.hidden) tried(this.body, async () => put(this.body, JSON.stringify(await this.bodyOf(), null, 2)));
  }

  /** The text so far, and what comes while the job runs. */
  async follow() {
    this.abort?.abort();
    this.abort = new AbortController();
    this.output.hidden = false;
    put(this.output, "");
    try {
      if (ENDED.includes(this.job.state)) {
        const { text, result, error } = await call(this.path);
        put(this.output, text || JSON.stringify(result || error || "There is none.", null, 2));
        return;
      }
      const response = await request(`${this.path}/events`, { signal: this.abort.signal });
      for await (const event of events(response)) this.output.append(textOf(event));
      this.reload();
    } catch (error) {
      if (error.name !== "AbortError") put(this.output, error.message);
    }
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is no JSON: ${error.message}`);
  }
}

function attemptRow() {
  const cells = Array.from({ length: 5 }, () => h("td"));
  return {
    element: h("tr", null, cells),
    update(attempt) {
      const took = (attempt.ended_at || now()) - attempt.started_at;
      putAll(cells, [attempt.number, attempt.worker, clock(attempt.started_at), duration(Math.max(0, took)),
        attempt.outcome.replaceAll("_", " ")]);
    },
  };
}
