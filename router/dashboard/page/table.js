// Rows of a table. A cell knows its column's name: on a phone a row is a card, and nothing stands above it.

import { keyed, make, setText } from "./dom.js";
import { NOTHING } from "./format.js";

/** `columns`: [class, of(item)]; the first is the row's header. A cell without `of` is filled by whoever made the row. */
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
