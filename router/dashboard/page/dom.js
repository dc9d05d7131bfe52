// Nodes. Whatever comes from the wire goes in as text, never as markup.

/** @returns {HTMLElement} children may be nodes or texts */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function drawn(tag, attributes = {}, ...children) {
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

/** Touches the document only where something is new: a reader's place and selection stay. */
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

const kept = new WeakMap();

/** One child for every item, in their order: those that stay are updated where they are.
 *  `create(item)` gives {node, update(item)}. */
export function keyed(parent, items, keyOf, create) {
  const before = kept.get(parent) ?? new Map();
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
  kept.set(parent, now);
}

/** A select's options, by value; what is chosen stays chosen while it exists. */
export function setOptions(select, options) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options === wanted) return;
  const chosen = select.value;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
  select.dataset.options = wanted;
}
