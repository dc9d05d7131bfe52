// Current problems: a headline and a list. Old data is marked as old.

import { byId, keyed, make, setData, setText, show } from "./dom.js";
import { duration } from "./format.js";
import { fresh, shared } from "./state.js";

const SIGNS = { critical: "✖", warning: "▲", note: "●", none: "✓", unknown: "?" };
const WORDS = { critical: "Critical", warning: "Warning", note: "Note" };
const RANK = { critical: 3, warning: 2, note: 1 };
const SECTIONS = new Set(["capacity", "bad-refresh", "both", "cache-drift", "wrong-specialist", "restarts"]);

let announced = null;

export function showTroubles(overview) {
  keyed(byId("troubles"), overview.troubles, identity, () => item());
  announce(overview);
  showHeadline();
}

/** Also called without new data, so that an old "All well" does not look current. */
export function showHeadline() {
  const { overview } = shared;
  if (overview === null) return;
  const severity = fresh.isLive ? (worstOf(overview)?.severity ?? "none") : "unknown";
  const sign = signOf(severity);
  setData(byId("headline"), "severity", severity);
  setText(byId("headline-sign"), sign);
  setText(byId("headline-text"), fresh.isLive ? line(overview) : `As of ${fresh.asOf}: ${line(overview)}`);
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

export const wordOf = (severity) => WORDS[severity] ?? severity;
export const signOf = (severity) => SIGNS[severity] ?? SIGNS.unknown;

const identity = (trouble) => `${trouble.kind} ${trouble.subject}`;

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

function item() {
  const word = make("span", { class: "word" });
  const text = make("span");
  const since = make("span");
  const link = make("a", { href: "#runbook" });
  const node = make("li", {}, word, text, make("span", { class: "aside" }, since, link));
  link.addEventListener("click", () => openSection(link.hash));
  const update = (trouble) => {
    setData(node, "severity", trouble.severity);
    setText(word, `${signOf(trouble.severity)} ${wordOf(trouble.severity)}`);
    setText(text, trouble.text);
    setText(since, trouble.since_unix_ms ? `for ${duration((fresh.nowMs - trouble.since_unix_ms) / 1000)}` : "");
    const known = SECTIONS.has(trouble.runbook);
    show(link, known);
    if (known) link.href = `#runbook-${trouble.runbook}`;
    setText(link, `Runbook: ${trouble.runbook.replaceAll("-", " ")}`);
  };
  return { node, update };
}

function openSection(hash) {
  const section = document.getElementById(hash.slice(1));
  if (section instanceof HTMLDetailsElement) {
    section.open = true;
    section.querySelector("summary").focus();
  }
}
