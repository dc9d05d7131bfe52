// Line plots and sparklines of one figure over time. Missing measurements leave gaps.

import { makeSvg, make, setAttribute, setText } from "./dom.js";
import { clock, seconds } from "./format.js";

const SIZE = 100;
const GAP_STEPS = 3;

/** The `d` of a path. `at` and `value` return positions between 0 and 1; null breaks the line. */
function path(points, at, value, gap) {
  const parts = [];
  let before = null;
  for (const point of points) {
    const height = value(point);
    if (height === null) {
      before = null;
      continue;
    }
    const joined = before !== null && point.at_unix_ms - before <= gap;
    const spot = `${(SIZE * at(point)).toFixed(2)} ${(SIZE * (1 - height)).toFixed(2)}`;
    parts.push(joined ? `L${spot}` : `M${spot}h0.01`);
    before = point.at_unix_ms;
  }
  return parts.join("");
}

/** The next round number: 1, 2, 2.5 or 5 times a power of ten. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= value * 0.999);
}

/** The [least, most] of the axis. The target is included unless it is far above the values. */
export function scaleOf(values, aim, bounds) {
  const known = values.filter((each) => each !== null && each !== undefined);
  if (bounds) {
    const least = Math.min(...known, aim ?? 1, 1);
    return [Math.max(0, Math.floor((least - 0.02) * 20) / 20) * (bounds === "near" ? 1 : 0), 1];
  }
  const most = Math.max(...known, 0);
  const reach = aim !== null && (aim <= 3 * most || most === 0) ? Math.max(most, aim * 1.1) : most;
  return [0, roundUp(reach || 1)];
}

/** `kind`: {title, of(point), second(point), format, bounds, aimName, secondName}. */
export class Plot {
  #kind;
  #shown = null;
  #line = makeSvg("path", { class: "line" });
  #second = makeSvg("path", { class: "line second" });
  #area = makeSvg("path", { class: "area" });
  #aim = makeSvg("line", { class: "aim-line", x1: 0, x2: SIZE });
  #at = makeSvg("line", { class: "at", y1: 0, y2: SIZE });
  #svg = makeSvg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, preserveAspectRatio: "none", role: "img" });
  #value = make("span", { class: "now-value" });
  #axis = [make("span"), make("span"), make("span")];
  #from = make("span");
  #to = make("span");
  #legend = make("p", { class: "legend", "aria-hidden": "true" });
  #aimText = make("span", { class: "dash" });
  #secondText = make("span", { class: "dots" });

  constructor(kind) {
    this.#kind = kind;
    this.#svg.append(this.#area, this.#aim, this.#line, this.#second, this.#at);
    this.#svg.addEventListener("pointermove", (event) => this.#point(event));
    this.#svg.addEventListener("pointerleave", () => this.#leave());
    this.#legend.append(this.#aimText, this.#secondText);
    setText(this.#secondText, kind.secondName ?? "");
    this.#secondText.hidden = !kind.second;
    const caption = make("figcaption", {}, make("span", { class: "title" }, kind.title), this.#value);
    const axis = make("div", { class: "axis", "aria-hidden": "true" }, ...this.#axis);
    const times = make("div", { class: "axis-x", "aria-hidden": "true" }, this.#from, this.#to);
    const frame = make("div", { class: "frame" }, axis, this.#svg, times);
    this.node = make("figure", { class: "plot" }, caption, frame, this.#legend);
  }

  update(points, aim, stepSeconds, specialist) {
    const kind = this.#kind;
    const values = points.map(kind.of);
    const [least, most] = scaleOf(kind.second ? [...values, ...points.map(kind.second)] : values, aim, kind.bounds);
    const [from, to] = [points[0]?.at_unix_ms ?? 0, points.at(-1)?.at_unix_ms ?? 0];
    const at = (point) => (to > from ? (point.at_unix_ms - from) / (to - from) : 1);
    const height = (of) => (point) => {
      const value = of(point);
      return value === null || value === undefined ? null : (value - least) / (most - least || 1);
    };
    const gap = GAP_STEPS * stepSeconds * 1000;
    setAttribute(this.#line, "d", path(points, at, height(kind.of), gap));
    setAttribute(this.#second, "d", kind.second ? path(points, at, height(kind.second), gap) : "");
    setAttribute(this.#area, "d", area(points, at, height(kind.of)));
    this.#showAim(aim, least, most);
    [most, (most + least) / 2, least].forEach((each, index) => setText(this.#axis[index], kind.format(each)));
    setText(this.#from, points.length ? clock(from) : "");
    setText(this.#to, points.length ? clock(to) : "");
    this.#shown = { points, at };
    setText(this.#value, this.#format(points.at(-1)));
    setAttribute(this.#svg, "aria-label", this.#summary(values, aim, specialist));
  }

  #showAim(aim, least, most) {
    const inside = aim !== null && aim <= most && aim >= least;
    const y = inside ? (SIZE * (1 - (aim - least) / (most - least || 1))).toFixed(2) : "-9";
    setAttribute(this.#aim, "y1", y);
    setAttribute(this.#aim, "y2", y);
    this.#aimText.hidden = aim === null;
    const name = this.#kind.aimName ?? "target";
    setText(this.#aimText, aim === null ? "" : `${name} ${this.#kind.format(aim)}${inside ? "" : ", off the scale"}`);
  }

  #format(point) {
    if (!point) return "no data yet";
    const second = this.#kind.second ? `, ${this.#kind.secondName} ${this.#kind.format(this.#kind.second(point))}` : "";
    return `${this.#kind.format(this.#kind.of(point))}${second}`;
  }

  #summary(values, aim, specialist) {
    const known = values.filter((each) => each !== null && each !== undefined);
    const { title, format, aimName } = this.#kind;
    if (!known.length) return `${specialist}: ${title}: no data`;
    const range = `from ${format(Math.min(...known))} to ${format(Math.max(...known))}, now ${format(values.at(-1))}`;
    return `${specialist}: ${title}: ${range}${aim === null ? "" : `; ${aimName ?? "target"} ${format(aim)}`}`;
  }

  #point(event) {
    const { points, at } = this.#shown ?? { points: [] };
    if (!points.length) return;
    const box = this.#svg.getBoundingClientRect();
    const place = (event.clientX - box.left) / (box.width || 1);
    const near = points.reduce((best, each) => (Math.abs(at(each) - place) < Math.abs(at(best) - place) ? each : best));
    const x = (SIZE * at(near)).toFixed(2);
    setAttribute(this.#at, "x1", x);
    setAttribute(this.#at, "x2", x);
    this.#at.style.visibility = "visible";
    setText(this.#value, `${clock(near.at_unix_ms)}  ${this.#format(near)}`);
  }

  #leave() {
    this.#at.style.visibility = "hidden";
    setText(this.#value, this.#format(this.#shown?.points.at(-1)));
  }
}

function area(points, at, height) {
  if (points.length < 2 || points.some((point) => height(point) === null)) return "";
  const top = points.map((point) => `L${(SIZE * at(point)).toFixed(2)} ${(SIZE * (1 - height(point))).toFixed(2)}`);
  return `M0 ${SIZE}${top.join("")}L${SIZE} ${SIZE}Z`;
}

const WIDTH = 100;
const HEIGHT = 20;
/** A sparkline reaches this far above its target, so that targets stand at one height while they are met. */
const AIM_ROOM = 1.25;

export function spark() {
  const line = makeSvg("path", { class: "line" });
  const aimed = makeSvg("line", { class: "aim-line", x1: 0, x2: WIDTH });
  const node = makeSvg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  node.append(aimed, line);

  function update(values, aim, title) {
    const known = values.filter((value) => value !== null && value !== undefined);
    const most = Math.max(...known, AIM_ROOM * (aim ?? 0)) || 1;
    const y = (value) => (HEIGHT - 1) * (1 - value / most) + 0.5;
    const x = (index) => (values.length > 1 ? (WIDTH * index) / (values.length - 1) : WIDTH);
    let command = "M";
    const points = values.map((value, index) => {
      if (value === null || value === undefined) {
        command = "M";
        return "";
      }
      const spot = `${command}${x(index).toFixed(1)} ${y(value).toFixed(2)}`;
      command = "L";
      return spot;
    });
    setAttribute(line, "d", points.join(""));
    const height = aim === null ? "0" : y(aim).toFixed(2);
    setAttribute(aimed, "visibility", aim === null ? "hidden" : "visible");
    setAttribute(aimed, "y1", height);
    setAttribute(aimed, "y2", height);
    const range = known.length ? `from ${seconds(Math.min(...known))} to ${seconds(Math.max(...known))}` : "no data";
    setAttribute(node, "aria-label", `${title}: ${range}${aim === null ? "" : `; target ${seconds(aim)}`}`);
  }
  return { node, update };
}
