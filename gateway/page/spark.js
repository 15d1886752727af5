/** A small line of the last minutes. */

import { attr, h, put, s } from "./dom.js";
import { count, rate } from "./format.js";

const WIDTH = 180;
const HEIGHT = 28;

const shown = (value) => (Number.isInteger(value) ? count(value) : rate(value));

/** `{element, set(values, stepS)}`. `name` is read to those who can't see the line. */
export function spark(name) {
  const area = s("path", "area");
  const line = s("path", "line");
  const title = s("title");
  const svg = s("svg", {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
  }, title, area, line);
  const most = h("span", "most");
  const span = h("span", "span");
  const element = h("div", null, svg, h("div", "scale", span, most));
  return {
    element,
    set(values, stepS) {
      const known = values.filter((value) => value !== null);
      const top = Math.max(1e-9, ...known);
      const step = WIDTH / Math.max(1, values.length - 1);
      let path = "";
      let pen = "M";
      values.forEach((value, index) => {
        if (value === null) pen = "M";
        else {
          const y = HEIGHT - 1 - (value / top) * (HEIGHT - 3);
          path += `${pen}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
          pen = "L";
        }
      });
      const whole = known.length === values.length && values.length > 1;
      attr(line, "d", path);
      attr(area, "d", whole ? `${path}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}z` : "");
      const seconds = Math.max(0, values.length - 1) * stepS;
      const long = seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
      put(span, values.length > 1 ? `last ${long}` : "");
      put(most, known.length ? `most ${shown(Math.max(...known))}` : "");
      put(title, `${name}, last ${long}: now ${shown(values.at(-1))}`);
    },
  };
}
