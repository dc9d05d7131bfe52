// Current findings: a headline and a list, with links to the runbook. Old data is marked as old.

import { byId, keyed, make, setAttribute, setData, setText, show } from "./dom.js";
import { duration, words } from "./format.js";
import { fresh, shared } from "./state.js";

const SIGNS = { critical: "✖", warning: "▲", note: "●", none: "✓", unknown: "?" };
const WORDS = { critical: "Critical", warning: "Warning", note: "Note" };
const RANK = { critical: 3, warning: 2, note: 1 };
const ALL_WELL = "All well";
const MOST_SHOWN = 3;
const all = byId("all-troubles");

let announced = null;

export function startTroubles() {
  all.addEventListener("click", () => {
    setAttribute(all, "aria-expanded", String(all.getAttribute("aria-expanded") === "false"));
    if (shared.overview) showTroubles(shared.overview);
  });
}

/** The headline tells the worst finding; the list has the others, at first only some of them. */
export function showTroubles(overview) {
  const others = overview.troubles.filter((each) => each !== headlined(overview));
  const isWhole = all.getAttribute("aria-expanded") === "true";
  keyed(byId("troubles"), isWhole ? others : others.slice(0, MOST_SHOWN), identity, findingItem);
  show(all, others.length > MOST_SHOWN);
  setText(all, isWhole ? "Show fewer findings" : `Show all ${others.length + (headlined(overview) ? 1 : 0)} findings`);
  announce(overview);
  showHeadline();
}

/** The finding that the headline quotes. */
export function headlined(overview) {
  const worst = worstOf(overview);
  return worst && overview.headline.startsWith(worst.text) ? worst : undefined;
}

/** Also called without new data, so that an old "All well" does not look current. */
export function showHeadline() {
  const { overview } = shared;
  if (overview === null) return;
  const calm = overview.headline.startsWith(ALL_WELL) ? "none" : "warning"; // the router tells a defect before it is a finding
  const severity = fresh.isLive ? (worstOf(overview)?.severity ?? calm) : "unknown";
  const sign = signOf(severity);
  setData(byId("headline"), "severity", severity);
  setText(byId("headline-sign"), sign);
  setText(byId("headline-text"), fresh.isLive ? line(overview) : `As of ${fresh.asOf}: ${line(overview)}`);
  const shown = headlined(overview);
  setText(byId("headline-since"), shown ? sinceOf(shown) : "");
  setRunbook(byId("headline-runbook"), shown);
  const title = `${severity === "none" ? "" : `${sign} `}${overview.ensemble || "Octet"} - Octet`;
  if (document.title !== title) document.title = title;
}

const worstOf = (overview) => overview.troubles.find((each) => each.severity !== "note");

/** The worst problem of every subject. */
export function worstBySubject(troubles) {
  const found = new Map();
  for (const trouble of troubles) {
    const before = found.get(trouble.subject);
    if (!before || RANK[trouble.severity] > RANK[before.severity]) found.set(trouble.subject, trouble);
  }
  return found;
}

/** Whether the finding is about the specialist or one of its replicas. */
export const isAbout = ({ subject }, view) => subject === view.name || view.replicas.some(({ info }) => info.name === subject);

/** The worst problem of the specialist or its replicas. */
export function troubleOf(view, troubles) {
  const subjects = [view.name, ...view.replicas.map((each) => each.info.name)];
  const found = subjects.map((subject) => troubles.get(subject)).filter(Boolean);
  return found.sort((one, other) => RANK[other.severity] - RANK[one.severity])[0];
}

export const wordOf = (severity) => WORDS[severity] ?? severity;
export const signOf = (severity) => SIGNS[severity] ?? SIGNS.unknown;

export const identity = (trouble) => `${trouble.kind} ${trouble.subject}`;

/** The router's headline, after the severity for readers who do not see the colour. */
function line(overview) {
  const worst = worstOf(overview);
  return worst ? `${wordOf(worst.severity)}: ${overview.headline}` : overview.headline;
}

/** Announces new problems, not every new figure. */
function announce(overview) {
  const now = overview.troubles.map((each) => `${each.severity} ${identity(each)}`).join("\n");
  if (now === announced) return;
  announced = now;
  setText(byId("announce"), line(overview));
}

const sinceOf = (trouble) => (trouble.since_unix_ms ? `for ${duration((fresh.nowMs - trouble.since_unix_ms) / 1000)}` : "");

/** Links to the runbook's section for the finding, or to the explanation of its kind. */
function setRunbook(link, trouble) {
  show(link, trouble !== undefined);
  if (trouble === undefined) return;
  setAttribute(link, "href", `dashboard/runbook#${encodeURIComponent(trouble.runbook || `finding-${trouble.kind}`)}`);
  setAttribute(link, "aria-label", `Runbook: ${words(trouble.runbook || trouble.kind).replaceAll("-", " ")}`);
}

export function findingItem() {
  const word = make("span", { class: "word" });
  const text = make("span");
  const since = make("span");
  const link = make("a", {}, "Runbook");
  const node = make("li", {}, word, text, make("span", { class: "aside" }, since, link));
  const update = (trouble) => {
    setData(node, "severity", trouble.severity);
    setText(word, `${signOf(trouble.severity)} ${wordOf(trouble.severity)}`);
    setText(text, trouble.text);
    setText(since, sinceOf(trouble));
    setRunbook(link, trouble);
  };
  return { node, update };
}
