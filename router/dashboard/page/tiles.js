// All specialists, in the order that the configuration has them: nothing moves under a hand.

import { byId, keyed, setText, show } from "./dom.js";
import { perSecond } from "./format.js";
import { choosePlot } from "./plots.js";
import { tile } from "./tile.js";
import { worstBySubject } from "./troubles.js";

const RANK = { critical: 3, warning: 2, note: 1 };
const filter = byId("filter");
const only = byId("only-troubled");
let last = null;
let troubles = new Map();

const asked = () => filter.value.trim().toLowerCase();

export function startTiles() {
  filter.addEventListener("input", () => last && showTiles(last));
  only.addEventListener("change", () => last && showTiles(last));
}

export function showTiles(overview) {
  last = overview;
  troubles = worstBySubject(overview.troubles);
  keyed(byId("tiles"), overview.specialists, (view) => view.name, (view) => {
    const part = tile(view.name, choosePlot);
    return {
      node: part.node,
      update: (now) => {
        const trouble = troubleOf(now, troubles);
        const is = part.matches(asked()) && (!only.checked || trouble !== undefined);
        part.shown(is);
        if (is) part.update(now, trouble);
      },
    };
  });
  const shown = [...byId("tiles").children].filter((node) => !node.hidden).length;
  show(byId("no-tiles"), shown === 0);
  setText(byId("specialists-title"), asked() || only.checked ? `Specialists, ${shown} of ${overview.specialists.length}` : "Specialists");
  const rate = overview.unrouted_per_second;
  setText(byId("unrouted"), rate > 0 ? `${perSecond(rate)} belong to nobody` : "");
}

/** The worst of its own, its replicas' and its lanes'. */
function troubleOf(view, troubles) {
  const subjects = [view.name, ...view.replicas.map((each) => each.info.name)];
  const found = subjects.map((subject) => troubles.get(subject)).filter(Boolean);
  return found.sort((one, other) => RANK[other.severity] - RANK[one.severity])[0];
}
