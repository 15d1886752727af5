/** Links to files of the API. */

import { address, key, request } from "./api.js";
import { notice } from "./dialog.js";
import { h, put, save } from "./dom.js";

/** `{element, set(text, path)}`; hidden without a path. The browser fetches the file by itself where no key has to be sent. */
export function fileLink(name) {
  let path = "";
  const element = h("a", { download: name, onclick: (event) => {
    if (!key()) return;
    event.preventDefault();
    request(path).then(async (response) => save(name, await response.blob())).catch((error) => notice(error.message));
  } });
  return {
    element,
    set(text, file) {
      path = file || "";
      element.hidden = !path;
      element.href = address(path);
      put(element, text);
    },
  };
}
