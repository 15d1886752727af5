/** The view #dead: jobs that are out of attempts and data that could not be read, by their reason. */

import { call } from "./api.js";
import { confirm } from "./dialog.js";
import { button, copyButton, h, list, put } from "./dom.js";
import { clock, jobsAt, plural, shortId } from "./format.js";

const PAGE = 100;
const MOST = 1000;

/** Show the view. Returns the function that ends it. */
export function deadView(main) {
  const groups = h("div", { class: "groups" });
  const note = h("p", { class: "note", role: "status" }, "Reading …");
  let letters = [];
  const tools = h("div", { class: "buttons" },
    button("Refresh", () => load()),
    button("Export as JSONL", () => save(letters)),
    copyButton("curl", `curl -s ${location.origin}/admin/dead`), copyButton("CLI", "flotilla dead ls"));
  main.append(h("section", { class: "panel", "data-panel": "dead", "aria-label": "Dead letters" },
    tools, note, groups));

  async function load() {
    try {
      letters = await all();
      const found = grouped(letters);
      list(groups, found, (group) => group.reason, (group) => groupCard(group, load));
      put(note, letters.length
        ? `${plural(letters.length, "dead letter")} with ${plural(found.length, "reason")}. Their jobs are not tried again until you replay them.`
        : "There are none: no job is out of attempts, and all data could be read.");
    } catch (error) {
      put(note, error.message);
    }
  }
  load();
  return () => {};
}

async function all() {
  const letters = [];
  let cursor = "";
  do {
    const page = await call(`/admin/dead?limit=${PAGE}${cursor ? `&cursor=${cursor}` : ""}`);
    letters.push(...page.data);
    cursor = page.has_more ? page.next_cursor : "";
  } while (cursor && letters.length < MOST);
  return letters;
}

function grouped(letters) {
  const groups = new Map();
  for (const letter of letters) {
    const reason = `${letter.what}: ${letter.reason}`;
    if (!groups.has(reason)) groups.set(reason, { reason, letters: [] });
    groups.get(reason).letters.push(letter);
  }
  return [...groups.values()].sort((one, other) => other.letters.length - one.letters.length);
}

function groupCard(first, reload) {
  const numbers = h("p", { class: "note" });
  const rows = h("ul", { class: "letters" });
  const replay = button("Replay all …", () => each("replay", row.group, reload));
  const drop = button("Drop all …", () => each("drop", row.group, reload), { class: "danger" });
  const row = {
    group: first,
    element: h("article", { class: "group" },
      h("div", { class: "pool-head" }, h("h3", null, first.reason), replay, drop), numbers,
      h("details", null, h("summary", null, "The letters"), rows)),
    update(group) {
      row.group = group;
      const times = group.letters.map((letter) => letter.created_at);
      const models = [...new Set(group.letters.map((letter) => letter.job.model).filter(Boolean))].join(", ");
      put(numbers, `${plural(group.letters.length, "letter")}${models ? ` of ${models}` : ""}, first ${clock(Math.min(...times))}, last ${clock(Math.max(...times))}.`);
      replay.hidden = !group.letters.some((letter) => letter.replayable);
      list(rows, group.letters.slice(0, 50), (letter) => letter.id, (letter) => letterRow(letter, reload));
    },
  };
  return row;
}

function letterRow(letter, reload) {
  const attempts = letter.attempts.map((attempt) => `${attempt.worker} ${attempt.outcome.replaceAll("_", " ")}`).join(", ");
  const one = { reason: letter.id, letters: [letter] };
  return {
    element: h("li", { "data-letter": letter.id },
      h("time", null, clock(letter.created_at)),
      letter.job_id ? h("a", { class: "id", href: jobsAt("", letter.job_id) }, shortId(letter.job_id)) : h("span", { class: "id" }, letter.subject),
      h("span", null, [letter.job.tenant, letter.job.model, attempts].filter(Boolean).join(" · ")),
      h("span", { class: "buttons" },
        letter.replayable ? button("Replay …", () => each("replay", one, reload), { class: "quiet" }) : null,
        button("Drop …", () => each("drop", one, reload), { class: "quiet" }))),
    update() {},
  };
}

/** Replay or drop each letter of a group. */
function each(verb, { letters }, reload) {
  const chosen = verb === "replay" ? letters.filter((letter) => letter.replayable) : letters;
  const text = verb === "replay"
    ? `The requests of ${plural(chosen.length, "job")} are submitted again as new jobs, with all their attempts; the letters are deleted.`
    : `${plural(chosen.length, "letter")} are deleted.`;
  confirm({
    title: verb === "replay" ? "Replay dead letters" : "Drop dead letters",
    text, verb: verb === "replay" ? "Replay" : "Drop", danger: verb === "drop", reasoned: false, after: reload,
    run: async () => {
      let done = 0;
      const failed = [];
      for (const letter of chosen) {
        try {
          if (verb === "replay") await call(`/admin/dead/${letter.id}/replay`, { method: "POST" });
          else await call(`/admin/dead/${letter.id}`, { method: "DELETE" });
          done += 1;
        } catch (error) {
          failed.push(error.message);
        }
      }
      if (!done && failed.length) throw new Error(failed[0]);
      return `${plural(done, "letter")} ${verb === "replay" ? "replayed" : "dropped"}${failed.length ? `, ${failed.length} not: ${failed[0]}` : ""}.`;
    },
  });
}

function save(letters) {
  const text = letters.map((letter) => JSON.stringify(letter)).join("\n");
  const link = h("a", { download: "dead-letters.jsonl", href: URL.createObjectURL(new Blob([`${text}\n`])) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
