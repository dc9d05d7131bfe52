// A word about what was just done.

import { byId, setText, show } from "./dom.js";

const SHOWN_MS = 8000;
let timer = 0;

export function toast(words) {
  const node = byId("toast");
  show(node, true);
  setText(node, words);
  clearTimeout(timer);
  timer = setTimeout(() => show(node, false), SHOWN_MS);
}
