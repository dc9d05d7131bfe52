// The views of the page. The URL's fragment names the view: `#requests`, or `#specialist/NAME` for the details of a specialist.

import { byId, setAttribute, show } from "./dom.js";

const OVERVIEW = "specialists";
const DETAILS = "specialist";
const sections = [...document.querySelectorAll("main > .view")];
const links = [...document.querySelectorAll("nav a[href^='#']")];
let last = { view: OVERVIEW, name: "" };

export const detailsHash = (name) => `#${DETAILS}/${encodeURIComponent(name)}`;

/** The view that the fragment names, and the specialist's name; the overview if the fragment names no view. */
export function currentView() {
  const [view, ...rest] = location.hash.slice(1).split("/");
  if (view === DETAILS && rest.length) return { view, name: decoded(rest.join("/")) };
  return { view: view !== DETAILS && sections.some((each) => each.id === view) ? view : OVERVIEW, name: "" };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // not written by this page
  }
}

/** `changed()` draws the new view; `rowLink(name)` returns the link in the overview that opens a specialist. */
export function startViews(changed, rowLink) {
  addEventListener("hashchange", () => {
    const before = last;
    showView();
    changed();
    const closed = before.view === DETAILS && last.view === OVERVIEW ? rowLink(before.name) : null;
    (closed ?? byId(last.view)).focus({ preventScroll: true });
    closed?.scrollIntoView({ block: "nearest" });
    if (!closed) scrollTo({ top: 0, behavior: "instant" });
  });
  addEventListener("keydown", (event) => {
    const isFree = !document.querySelector("dialog[open]") && !event.target.closest?.("input, select, textarea");
    if (event.key === "Escape" && last.view === DETAILS && isFree) location.hash = OVERVIEW;
  });
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId(last.view).focus();
  });
  showView();
}

function showView() {
  last = currentView();
  for (const section of sections) show(section, section.id === last.view);
  for (const link of links) {
    if (link.hash === `#${last.view === DETAILS ? OVERVIEW : last.view}`) setAttribute(link, "aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.dataset.view = last.view;
}
