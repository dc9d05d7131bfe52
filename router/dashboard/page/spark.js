// The recent past of one figure, as small as a line of text.

import { drawn, setAttribute } from "./dom.js";
import { seconds } from "./format.js";
import { scaleOf } from "./plot.js";

const WIDTH = 100;
const HEIGHT = 20;

export function spark() {
  const line = drawn("path", { class: "line" });
  const aimed = drawn("line", { class: "aim-line", x1: 0, x2: WIDTH });
  const node = drawn("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  node.append(aimed, line);

  function update(values, aim, title) {
    const [, most] = scaleOf(values, aim, null);
    const y = (value) => (HEIGHT - 1) * (1 - value / most) + 0.5;
    const x = (index) => (values.length > 1 ? (WIDTH * index) / (values.length - 1) : WIDTH);
    let pen = "M";
    const told = values.map((value, index) => {
      if (value === null || value === undefined) {
        pen = "M";
        return "";
      }
      const spot = `${pen}${x(index).toFixed(1)} ${y(value).toFixed(2)}`;
      pen = "L";
      return spot;
    });
    setAttribute(line, "d", told.join(""));
    const inside = aim !== null && aim <= most;
    const height = inside ? y(aim).toFixed(2) : "0";
    setAttribute(aimed, "visibility", inside ? "visible" : "hidden");
    setAttribute(aimed, "y1", height);
    setAttribute(aimed, "y2", height);
    const known = values.filter((value) => value !== null && value !== undefined);
    const range = known.length ? `from ${seconds(Math.min(...known))} to ${seconds(Math.max(...known))}` : "nothing measured";
    setAttribute(node, "aria-label", `${title}: ${range}${aim === null ? "" : `; target ${seconds(aim)}`}`);
  }
  return { node, update };
}
