/** Words of a shell command that is copied: their texts come from links, jobs and users. */

// Of text that is pasted, a terminal obeys these; the last are marks of writing direction.
const CONTROLS = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+/g;

/** One word, whatever is in the text. */
export function word(text) {
  const shown = text.replace(CONTROLS, " ");
  return /^[\w:,./-]+$/.test(shown) ? shown : `'${shown.replaceAll("'", "'\\''")}'`;
}

/** The words of a filter as arguments of a command. */
export function words(filter) {
  const found = filter.split(/\s+/).filter(Boolean);
  return [...(found.some((each) => each.startsWith("-")) ? ["--"] : []), ...found.map(word)].join(" ");
}
