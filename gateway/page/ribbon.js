/** The ribbon: one sentence that says how the fleet is, and what is wrong, since when, what to do. */

import { act } from "./actions.js";
import { attr, button, h, list, put } from "./dom.js";
import { feed, now, watch } from "./feed.js";
import { bytes, clock, plural, whole } from "./format.js";

const SHAPES = {
  ok: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2z",
  warning: "M8 1.5 15 14.5H1z",
  problem: "M5 1h6l4 4v6l-4 4H5l-4-4V5z",
  unknown: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 2a4 4 0 1 1 0 8 4 4 0 0 1 0-8z",
};
const WORDS = { warning: "Warning", problem: "Problem" };

let announced = "";

/** Keep the ribbon up to date. */
export function start() {
  const parts = Object.fromEntries(["ribbon", "verdict", "facts", "problems", "announcement", "level"]
    .map((id) => [id, document.getElementById(id)]));
  watch(() => {
    const level = shownLevel();
    for (const element of [parts.ribbon, parts.verdict]) attr(element, "data-level", level);
    attr(parts.level.firstElementChild, "d", SHAPES[level] || SHAPES.unknown);
    document.body.classList.toggle("stale", feed.state !== "live");
    const sentence = sentenceNow();
    put(parts.verdict, sentence);
    parts.facts.replaceChildren(...facts());
    problems(parts.problems);
    announce(parts.announcement, level, sentence);
    document.title = level === "ok" || level === "unknown" ? "Flotilla" : `${WORDS[level]}: Flotilla`;
  });
}

function shownLevel() {
  return feed.state === "live" && feed.overview ? feed.overview.verdict.level : "unknown";
}

function sentenceNow() {
  if (feed.state === "key") return "This fleet needs an API key. Type one in to see it.";
  if (feed.state === "forbidden") {
    return "This key is not an operator's: it shows its own jobs and the playground, not the fleet.";
  }
  if (!feed.overview) return feed.error || "Connecting to the gateway.";
  if (feed.state !== "live") {
    const old = whole((Date.now() - feed.receivedAt) / 1e3);
    return `No data for ${old}. What is shown is of ${clock(feed.overview.at)}. Connecting again. ${feed.error}`;
  }
  return feed.overview.verdict.sentence;
}

function facts() {
  const overview = feed.overview;
  if (!overview) return [];
  const { redis, gateway } = overview;
  const paused = overview.pools.filter((pool) => pool.paused || pool.intake_stopped).map((pool) => pool.pool);
  const memory = `${bytes(redis.used_memory)}${redis.max_memory ? ` of ${bytes(redis.max_memory)}` : ""}`;
  const ended = (overview.verdict.recovered || [])[0];
  return [
    overview.simulated ? h("strong", "simulated", "simulated engine: no real answers") : null,
    h("span", null, overview.engines.join(", ") || "no engine"),
    paused.length ? h("a", { href: "#fleet" }, `paused: ${paused.join(", ")}`) : null,
    ended ? h("span", { title: ended.sentence }, `recovered ${clock(ended.ended)} after ${whole(ended.ended - ended.since)}`) : null,
    h("span", { title: gateway.id }, `gateway ${gateway.version}`),
    h("time", null, clock(overview.at)),
    h("span", null, redis.ok ? `Redis ${memory}` : "Redis is away"),
  ].filter(Boolean);
}

function problems(element) {
  const found = (feed.state === "live" && feed.overview.verdict.problems) || [];
  element.hidden = !found.length;
  list(element, found, (each) => `${each.kind} ${each.pool} ${each.worker}`, (first) => {
    const word = h("b");
    const text = h("span");
    const [since, what] = Array.from({ length: 2 }, () => h("span", "since"));
    const go = button("", () => act(row.problem), "primary");
    const row = {
      problem: first,
      element: h("li", null, h("span", "what", word, " ", text, " ", since, " ", what),
        h("span", "todo", go)),
      update(problem) {
        row.problem = problem;
        attr(row.element, "data-level", problem.level);
        put(word, WORDS[problem.level] || "Note");
        // The verdict's sentence has the worst one already.
        put(text, feed.overview.verdict.sentence.startsWith(problem.sentence) ? "" : problem.sentence);
        put(since, problem.since ? `Since ${clock(problem.since)} (${whole(now() - problem.since)}).` : "");
        put(what, problem.do || "");
        go.hidden = !problem.action;
        if (problem.action) put(go, `${problem.action.text} …`);
      },
    };
    return row;
  });
}

function announce(element, level, sentence) {
  const problemsNow = feed.overview?.verdict.problems || [];
  const what = `${feed.state} ${level} ${problemsNow.map((each) => each.kind + each.worker).join()}`;
  if (what === announced) return;
  announced = what;
  const more = problemsNow.length > 1 ? ` ${plural(problemsNow.length, "problem")}.` : "";
  put(element, `${WORDS[level] || ""} ${sentence}${more}`);
}
