// What a story is made of.

import { make } from "./dom.js";

export function part(title, ...nodes) {
  return make("section", { class: "story-part" }, make("h3", {}, title), ...nodes.filter(Boolean));
}

/** Pairs of a name and a text; those without a text are left out. */
export function facts(pairs) {
  const told = pairs.filter(([, text]) => text !== "" && text !== null && text !== undefined);
  return make("dl", { class: "facts" }, ...told.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, String(text))]));
}

export function list(texts) {
  return make("ul", {}, ...texts.map((text) => make("li", {}, text)));
}

export function plainTable(name, titles, rows) {
  const caption = make("caption", { class: "unseen" }, name);
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const lines = rows.map((row) => make("tr", {}, ...row.map((text, index) => make("td", { "data-of": titles[index] }, text))));
  return make("table", { class: "table cards" }, caption, make("thead", {}, head), make("tbody", {}, ...lines));
}
