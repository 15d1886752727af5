/** The view #dead: jobs that are out of attempts and data that could not be read, by their reason. */

import { call } from "./api.js";
import { confirm } from "./dialog.js";
import { button, buttons, h, list, listView, put, save } from "./dom.js";
import { clock, jobsAt, plural, shortId } from "./format.js";

const PAGE = 100;
const MOST = 1000;

/** Show the view. */
export function deadView(main) {
  const groups = h("div");
  let letters = [];
  listView(main, ["dead", "Dead letters", "/admin/dead", "flotilla dead ls"], groups, false, async (load) => {
    letters = await all();
    const found = grouped(letters);
    list(groups, found, "reason", (group) => groupCard(group, load));
    return letters.length
      ? `${plural(letters.length, "dead letter")} with ${plural(found.length, "reason")}. Their jobs are not tried again until you replay them.`
      : "There are none: no job is out of attempts, and all data could be read.";
  }, button("Export as JSONL", () => save("dead-letters.jsonl", new Blob(letters.map((letter) => `${JSON.stringify(letter)}\n`)))));
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
  const groups = Map.groupBy(letters, (letter) => `${letter.what}: ${letter.reason}`);
  return [...groups].map(([reason, same]) => ({ reason, letters: same }))
    .sort((one, other) => other.letters.length - one.letters.length);
}

function groupCard(first, reload) {
  const numbers = h("p", "note");
  const rows = h("ul", "letters");
  const replay = button("Replay all …", () => change("Replay", row.letters, reload));
  const drop = button("Drop all …", () => change("Drop", row.letters, reload), "danger");
  const row = {
    letters: first.letters,
    element: h("article", "group",
      h("div", "pool-head", h("h3", null, first.reason), replay, drop), numbers,
      h("details", null, h("summary", null, "The letters"), rows)),
    update({ letters }) {
      row.letters = letters;
      const times = letters.map((letter) => letter.created_at);
      const models = [...new Set(letters.map((letter) => letter.job.model).filter(Boolean))].join(", ");
      put(numbers, `${plural(letters.length, "letter")}${models ? ` of ${models}` : ""}, first ${clock(Math.min(...times))}, last ${clock(Math.max(...times))}.`);
      replay.hidden = !letters.some((letter) => letter.replayable);
      list(rows, letters.slice(0, 50), "id", (letter) => letterRow(letter, reload));
    },
  };
  return row;
}

function letterRow(letter, reload) {
  const attempts = letter.attempts.map((attempt) => `${attempt.worker} ${attempt.outcome.replaceAll("_", " ")}`).join(", ");
  return {
    element: h("li", { "data-letter": letter.id },
      h("time", null, clock(letter.created_at)),
      letter.job_id ? h("a", { class: "id", href: jobsAt("", letter.job_id) }, shortId(letter.job_id)) : h("span", "id", letter.subject),
      h("span", null, [letter.job.tenant, letter.job.model, attempts].filter(Boolean).join(" · ")),
      buttons(
        letter.replayable ? button("Replay …", () => change("Replay", [letter], reload), "quiet") : null,
        button("Drop …", () => change("Drop", [letter], reload), "quiet"))),
  };
}

/** Replay or drop each of these letters. */
function change(verb, letters, after) {
  const replay = verb === "Replay";
  const chosen = replay ? letters.filter((letter) => letter.replayable) : letters;
  confirm({
    title: `${verb} dead letters`, verb, danger: !replay, reasoned: false, after,
    text: replay
      ? `The requests of ${plural(chosen.length, "job")} are submitted again as new jobs, with all their attempts; the letters are deleted.`
      : `${plural(chosen.length, "letter")} are deleted.`,
    run: async () => {
      const failed = [];
      for (const { id } of chosen) {
        try {
          await call(`/admin/dead/${id}${replay ? "/replay" : ""}`, { method: replay ? "POST" : "DELETE" });
        } catch (error) {
          failed.push(error.message);
        }
      }
      const done = chosen.length - failed.length;
      if (!done && failed.length) throw new Error(failed[0]);
      return `${plural(done, "letter")} ${replay ? "replayed" : "dropped"}${failed.length ? `, ${failed.length} not: ${failed[0]}` : ""}.`;
    },
  });
}
