/** The view #batches: this key's files of requests, how far each is, and what it has answered. */

import { call, post } from "./api.js";
import { confirm } from "./dialog.js";
import { bar, button, copyButton, ENDED, figure, gauge, h, list, listView, put, setState } from "./dom.js";
import { now } from "./feed.js";
import { count, duration, plural, rate, shortId, whole } from "./format.js";
import { fileLink } from "./link.js";

const PATH = "/v1/batches?limit=50";
const READINGS = 13; // of a rate: the last minute
const ERRORS = 5;

/** Show the view. Returns the function that ends it. */
export function batchesView(main) {
  const rows = h("ul");
  return listView(main, ["batches", "Batches", PATH, "flotilla batch ls"], rows, true, async (load) => {
    const { data, has_more: more } = await call(PATH);
    list(rows, data, "id", (batch) => batchRow(batch, load));
    return data.length
      ? `${plural(data.length, "batch", "batches")} of this key, newest first.${more ? " There are more: flotilla batch ls." : ""}`
      : "There is no batch of this key yet. One answers a file of requests: flotilla batch run in.jsonl -o out.jsonl";
  });
}

function batchRow({ id }, reload) {
  const [state, model, of, last, facts] = ["pill", "models", "", "", ""].map((name) => h("span", { class: name || null }));
  const [done, failed, speed, time] = Array.from({ length: 4 }, () => figure());
  const share = bar();
  const stop = button("Cancel …", () => cancel(id, reload), { class: "quiet", "aria-label": `Cancel ${id}` });
  const output = fileLink(`${id}.output.jsonl`);
  const errors = fileLink(`${id}.errors.jsonl`);
  const wrong = h("ul", "decisions failure");
  const readings = [];
  return {
    element: h("li", { class: "entry", "data-batch": id },
      h("div", "who", h("h3", { class: "id", title: id }, shortId(id)), state, model),
      h("div", "gauges",
        gauge(of, h("span", "kv", share, done)), gauge("failed", failed),
        gauge("lines / s", speed), gauge(last, time), stop),
      h("div", "details", facts, output, errors,
        copyButton("CLI", `flotilla batch fetch ${id} -o out.jsonl`)), wrong),
    update(batch) {
      const { status, created_at: created, request_counts: { total, completed, failed: bad } } = batch;
      const ended = ENDED.includes(status);
      const lines = completed + bad;
      const took = batch[`${status}_at`] - created;
      const perS = ended ? lines / took : status === "in_progress" ? speedOf(readings, batch.in_progress_at, lines) : null;
      setState(state, status);
      put(model, batch.model || "");
      put(of, total ? `answered of ${count(total)}` : "answered");
      done.set(count(completed));
      share.set(completed / total, bad / total);
      failed.set(count(bad));
      speed.set(rate(perS));
      put(last, ended ? "took" : "time left");
      time.set(ended ? whole(took) : duration((total - lines) / perS));
      stop.hidden = ended || status === "cancelling";
      put(facts, `${batch.endpoint} · created ${whole(now() - created)} ago · window ${batch.completion_window} · ${plural(batch.usage.output_tokens, "output token")}`);
      for (const [link, name, file, soFar] of [[output, "output", batch.output_file_id, completed], [errors, "errors", batch.error_file_id, bad]]) {
        const text = name[0].toUpperCase() + name.slice(1);
        if (file) link.set(text, `/v1/files/${file}/content`);
        else link.set(`${text} so far`, !ended && soFar && `/v1/batches/${id}/${name}`);
      }
      const found = batch.errors?.data || [];
      const shown = found.slice(0, ERRORS).map(({ line, message }) => (line ? `Line ${line}: ${message}` : message));
      if (found.length > ERRORS) shown.push(`… and ${found.length - ERRORS} more: flotilla batch show ${id}`);
      list(wrong, shown, (text) => text, (text) => ({ element: h("li", null, text) }));
    },
  };
}

/** Lines per second of the last minute; at first since the batch runs. */
function speedOf(readings, began, lines) {
  if (!readings.length) readings.push([began, 0]);
  readings.push([now(), lines]);
  if (readings.length > READINGS) readings.shift();
  const [at, before] = readings[0];
  return (lines - before) / Math.max(1, now() - at);
}

function cancel(id, after) {
  confirm({
    title: "Cancel the batch", verb: "Cancel the batch", danger: true, reasoned: false, after,
    text: `${id} ends: what has been answered is kept, the other lines are given up.`,
    run: async () => {
      await post(`/v1/batches/${id}/cancel`);
      return `Batch ${shortId(id)} is cancelled.`;
    },
  });
}
