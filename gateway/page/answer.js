/** One streamed answer: text, position while it waits, raw events; it survives a lost connection. */

import { call, events, request, textOf } from "./api.js";
import { h, put } from "./dom.js";
import { count, duration, jobsAt, plural, rate, shortId } from "./format.js";

const KEEP = "keep_for=120"; // the job runs on while the connection is dropped
const MOST_RAW = 400;
const POSITION_MS = 1000;

/** `running`, `dropped`; `changed` is called when they change. */
export class Answer {
  constructor(number) {
    this.changed = () => {};
    this.running = this.dropped = false;
    this.status = h("p", { class: "stream-state", role: "status" }, "Nothing was sent yet.");
    this.stats = h("p", "stats note", "\u00a0");
    this.state = h("div", null, this.status, this.stats);
    const name = number ? "Second answer" : "Answer";
    this.text = h("div", { class: "text", tabindex: 0, role: "region", "aria-label": name });
    this.raw = h("ol", { class: "raw", tabindex: 0, "aria-label": `Events of the ${name.toLowerCase()}` });
  }

  /** Send a request and show what comes. */
  start(body) {
    this.text.replaceChildren();
    this.raw.replaceChildren();
    this.received = 0; // events, as the route that resumes a stream counts them
    this.tokens = 0;
    this.job = "";
    this.firstAt = 0;
    this.sentAt = performance.now();
    put(this.stats, "\u00a0");
    this.read(() => request("/v1/chat/completions", {
      method: "POST", body, headers: { "x-flotilla-on-disconnect": KEEP }, signal: this.abort.signal,
    }), "Sent.");
  }

  /** Give up the connection; the job runs on. */
  drop() {
    if (this.running) this.abort.abort();
  }

  /** Take the stream up again, behind what is here. */
  resume() {
    const path = `/jobs/${this.job}/stream?after=${this.received}`;
    this.mark(`connection dropped; resumed with GET ${path}`);
    this.read(() => request(path, { signal: this.abort.signal }), "Resumed.");
  }

  async read(connect, state) {
    this.abort = new AbortController();
    this.running = true;
    this.dropped = this.ended = false;
    this.say(state);
    this.changed();
    const timer = setInterval(() => this.position(), POSITION_MS);
    try {
      const response = await connect();
      this.job = response.headers.get("x-flotilla-job-id") || this.job;
      for await (const event of events(response)) this.take(event);
      if (!this.ended) this.lost("The connection has ended before the answer.");
    } catch (error) {
      if (error.name === "AbortError") this.lost("Connection dropped. The job runs on.");
      else if (error.status === undefined || (error.status === 0 && this.job)) this.lost("The connection was lost.");
      else this.say(error.message, true);
    } finally {
      clearInterval(timer);
      this.running = false;
      this.changed();
    }
    if (this.ended) this.summary();
  }

  lost(text) {
    this.dropped = Boolean(this.job);
    const had = `${count(this.received)} events are here. Resume continues behind them.`;
    this.say(this.dropped ? `${text} ${had}` : "The connection ended before the answer began.", !this.dropped);
  }

  say(text, failed = false) {
    put(this.status, text);
    this.status.classList.toggle("failure", failed);
  }

  take(event) {
    this.mark(event.raw, event.data === null ? "" : String(this.received + 1));
    if (event.data === null) {
      if (event.comment && !this.firstAt) this.say(`${event.comment[0].toUpperCase()}${event.comment.slice(1)}.`);
      return;
    }
    this.received += 1;
    this.ended = event.data === "[DONE]";
    if (this.ended) return;
    const { error } = JSON.parse(event.data);
    if (error) {
      this.ended = this.failed = true;
      this.say(error.message, true);
      return;
    }
    const text = textOf(event);
    if (!text) return;
    if (!this.firstAt) this.firstAt = performance.now();
    this.tokens += 1;
    this.text.append(text);
    this.say("Tokens arrive.");
  }

  mark(raw, number = "") {
    this.raw.append(h("li", number ? { "data-event": number } : { class: "mark" }, h("b", null, number), h("code", null, raw)));
    if (this.raw.childElementCount > MOST_RAW) this.raw.firstElementChild.remove();
  }

  /** Where the job is in the queue, while nothing has come. */
  async position() {
    if (!this.job || this.firstAt || !this.running) return;
    try {
      const job = await call(`/jobs/${this.job}`);
      if (this.firstAt || !this.running || job.state !== "queued") return;
      const wait = Number.isFinite(job.estimated_wait_s) ? `, about ${duration(job.estimated_wait_s)}` : "";
      this.say(`Queued, position ${count(job.position)}${wait}. ${job.wait_reason || ""}`);
    } catch { /* the stream reports what is wrong */ }
  }

  async summary() {
    if (!this.failed) this.say("Complete.");
    this.failed = false;
    if (!this.job) return;
    const link = h("a", { href: jobsAt("", this.job), class: "id" }, shortId(this.job));
    this.stats.replaceChildren(link);
    try {
      const job = await call(`/jobs/${this.job}`);
      const began = job.attempts?.[0]?.started_at ?? job.started_at;
      const ttft = this.firstAt ? (this.firstAt - this.sentAt) / 1e3 : null;
      const ran = job.finished_at - began - (job.attempts.length > 1 ? 0 : Math.max(0, (ttft || 0) - (began - job.created_at)));
      const tokens = job.usage?.completion_tokens ?? this.tokens;
      const parts = [
        `queue ${duration(began - job.created_at)}`, `TTFT ${duration(ttft)}`,
        plural(tokens, "token"), ran > 0 ? `${rate(tokens / ran)} tok/s` : "",
        job.attempts?.length ? `worker ${job.attempts.map((attempt) => attempt.worker).join(", then ")}` : "",
      ];
      this.stats.append(` · ${parts.filter(Boolean).join(" · ")}`);
    } catch { /* its record is kept for a while only */ }
  }
}
