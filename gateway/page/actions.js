/** The changes that an operator can make. Each asks first, with what it will do. */

import { call, post } from "./api.js";
import { confirm } from "./dialog.js";
import { h } from "./dom.js";
import { plural, shortId } from "./format.js";

const PREVIEWED = 5;

/** Pause or resume a pool: its intake, or the claims of its workers. */
export function pause(pool, paused) {
  const verb = paused ? "Resume" : "Pause";
  const choice = (value, name, text, checked) => h("label", "choice",
    h("input", { type: "radio", name: "what", value, checked, "aria-label": name }), h("b", null, name), text);
  const choices = h("fieldset", null, h("legend", null, "What stops"),
    choice("claims", "Start no jobs", "Workers claim no more. New requests wait in the queue.", true),
    choice("intake", "Refuse new requests", "Gateways answer 503. What waits is still started.", false));
  confirm({
    title: `${verb} ${pool}`, verb, danger: !paused, fields: paused ? [] : [choices],
    text: paused ? "Gateways take new requests, and workers claim jobs again." : "Jobs that run go on in both cases.",
    run: async (reason) => {
      const intake = (!paused && choices.querySelector("input:checked").value === "intake") || undefined;
      await post(`/admin/pools/${encodeURIComponent(pool)}/${verb.toLowerCase()}`, { reason, intake });
      return `Pool ${pool} is ${paused ? "resumed" : intake ? "closed to new requests" : "paused"}.`;
    },
  });
}

/** Drain a worker. */
export function drain(worker) {
  confirm({
    title: `Drain ${worker}`, verb: "Drain", danger: true,
    text: "The worker claims no more jobs, hands those in progress over to workers with free slots, finishes the others and ends.",
    run: async (reason) => {
      await post(`/admin/workers/${encodeURIComponent(worker)}/drain`, { reason });
      return `Worker ${worker} drains.`;
    },
  });
}

/** Carry out what the verdict suggests. */
export function act({ action, worker, pool }) {
  const path = action.path;
  if (worker && path.endsWith("/drain")) return drain(worker);
  if (pool && path.endsWith("/resume")) return pause(pool, true);
  if (pool && path.endsWith("/pause")) return pause(pool, false);
  return confirm({
    title: action.text, verb: action.text, reasoned: false, text: `${action.method} ${path}`,
    run: async () => {
      await call(path, { method: action.method, body: action.body || {} });
      return `Done: ${action.text}.`;
    },
  });
}

/** Cancel or retry (`verb`) all jobs that a filter matches, after a count of them. */
export function bulk(verb, filter, after) {
  const path = `/admin/jobs/${verb.toLowerCase()}`;
  confirm({
    title: `${verb} jobs`, verb, danger: verb === "Cancel", after,
    text: `All jobs that match “${filter}”.`,
    preview: async () => {
      const found = await post(path, { filter, dry_run: true });
      const ids = (found.ids || []).slice(0, PREVIEWED).map(shortId).join(", ");
      const more = found.matched > PREVIEWED ? ", …" : "";
      const text = found.matched
        ? [h("strong", null, plural(found.matched, "job")), ` match: ${ids}${more}`] : "No job matches.";
      return { possible: found.matched > 0, content: text };
    },
    run: async (reason) => {
      const done = await post(path, { filter, dry_run: false, reason });
      const more = done.more ? " There are more: do it again." : "";
      return `${verb}: ${done.done} of ${plural(done.matched, "job")} done.${more}`;
    },
  });
}

/** Cancel one job. `foreign`: it is another tenant's. */
export function cancelJob(id, foreign, after) {
  confirm({
    title: "Cancel the job", verb: "Cancel the job", danger: true, reasoned: foreign, after,
    text: `${id} ends now; its output so far is kept.`,
    run: async (reason) => {
      if (foreign) await one("cancel", id, reason);
      else await post(`/jobs/${id}/cancel`);
      return `Job ${shortId(id)} is cancelled.`;
    },
  });
}

/** Submit a job's request again. `body`: edited; null: the same. Returns the new job's id, or "". */
export async function retryJob(id, foreign, body = null) {
  if (foreign) return one("retry", id);
  return (await post(`/jobs/${id}/retry`, body ? { body } : undefined)).id;
}

async function one(verb, id, reason) {
  const done = await post(`/admin/jobs/${verb}`, { reason, filter: `id:${id} tenant:*`, dry_run: false });
  if (!done.done) throw new Error("The job was not changed: it has another state by now.");
  return verb === "retry" ? (done.new_ids || [])[0] || "" : id;
}
