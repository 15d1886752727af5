/** The request that the playground opens with: that of a job, if one was opened there. */

let given = null;

/** Open the playground with this body next. */
export function prefill(body) {
  given = body;
}

/** The body to begin with, once; null: the playground's own. */
export function taken() {
  const body = given;
  given = null;
  return body;
}
