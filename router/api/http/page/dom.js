// DOM helpers. Text from the wire is inserted as text, never as markup.

import { NOTHING } from "./format.js";

/** @returns {HTMLElement} children may be nodes or strings */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

export function byId(id) {
  const node = document.getElementById(id);
  if (node === null) throw new Error(`the page has no #${id}`);
  return node;
}

/** Changes the document only if the text is new, so that focus and selection stay. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setData(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

export function setWidth(node, share) {
  const width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
  if (node.style.width !== width) node.style.width = width;
}

const partsOf = new WeakMap();

/** Keeps one child for every item, in order, and updates children in place. `create(item)` returns {node, update(item)}. */
export function keyed(parent, items, keyOf, create) {
  const before = partsOf.get(parent) ?? new Map();
  const now = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (now.has(key)) continue;
    const part = before.get(key) ?? create(item);
    part.update(item);
    now.set(key, part);
    if (part.node === place) place = place.nextSibling;
    else parent.insertBefore(part.node, place);
  }
  for (const [key, part] of before) if (!now.has(key)) part.node.remove();
  partsOf.set(parent, now);
}

/** Sets the options of a select and keeps the chosen value if it still exists. */
export function setOptions(select, options) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options === wanted) return;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
  select.dataset.options = wanted;
}

/** A button that opens a confirmation. */
export function actionButton(text, act) {
  const button = make("button", { type: "button", class: "small" }, text);
  button.addEventListener("click", act);
  return button;
}

/** `columns`: [class, format(item)]; the first column is the row's header. The caller fills cells without a format. A cell
 *  carries its column's title, because on a phone a row is shown as a card. */
export function textRow(table, columns) {
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const cells = columns.map(([kind], index) =>
    index === 0 ? make("th", { scope: "row", class: kind }) : make("td", { class: kind, "data-of": titles[index] }),
  );
  const node = make("tr", {}, ...cells);
  const update = (item) => {
    columns.forEach(([, of], index) => {
      if (of === null) return;
      const text = of(item);
      setText(cells[index], text);
      cells[index].classList.toggle("none", text === NOTHING || text === "");
    });
  };
  return { node, cells, update };
}

export function rows(table, items, keyOf, create) {
  keyed(table.tBodies[0], items, keyOf, create);
}
