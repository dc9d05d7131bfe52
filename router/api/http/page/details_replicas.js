// The replicas of a specialist: queues, running requests and KV blocks.

import { actionButton, keyed, make, setData, setText, setWidth, show } from "./dom.js";
import { SEPARATOR, ago, count, percent, seconds, words } from "./format.js";
import { drainReplica, undrainReplica } from "./operations.js";
import { fresh } from "./state.js";

const TONES = { serving: "good", connecting: "warn", hung: "bad", draining: "warn", drained_by_operator: "warn" };

export function replicaPart(name) {
  const reuse = make("span", { class: "small-text" });
  const title = make("span");
  const list = make("ul", { class: "replicas", "aria-label": `Replicas of ${name}` });
  const node = make("div", { class: "part" }, make("p", { class: "row apart" }, title, reuse), list);

  function update(view) {
    const waiting = view.replicas.reduce((sum, each) => sum + loadOf(each).waiting, 0);
    const running = view.replicas.reduce((sum, each) => sum + loadOf(each).running, 0);
    setText(title, `Queue ${count(waiting)} · running ${count(running)}`);
    const usual = view.usual_cache_reuse === null ? "" : `, usually ${percent(view.usual_cache_reuse)}`;
    setText(reuse, view.cache_reuse === null ? "cache reuse not measured" : `cache reuse ${percent(view.cache_reuse)}${usual}`);
    keyed(list, view.replicas, (each) => each.info.name, replica);
  }
  return { node, update };
}

const loadOf = (replica) => replica.load ?? replica.info;

function replica() {
  let shown = null;
  const name = make("span");
  const status = make("span", { class: "badge" });
  const drain = actionButton("Drain…", () => (isDrained(shown.info) ? undrainReplica(shown) : drainReplica(shown)));
  const figures = make("span", { class: "small-text" });
  const restarts = make("span", { class: "small-text restarts" });
  const blocks = blockBar();
  const head = make("div", { class: "name" }, name, status);
  const node = make("li", { class: "replica" }, head, drain, make("div", { class: "load" }, figures, restarts, ...blocks.nodes));

  function update(given) {
    shown = given;
    const { info, load } = given;
    setText(name, info.name);
    const state = info.health_breaker && info.health_breaker !== "closed" ? `, health ${words(info.health_breaker)}` : "";
    setText(status, `${words(info.status)}${state}`);
    setData(status, "tone", state ? "bad" : (TONES[info.status] ?? "note"));
    const what = isDrained(info) ? "Undrain" : "Drain";
    setText(drain, `${what}…`);
    drain.setAttribute("aria-label", `${what} replica ${info.name}…`);
    setText(figures, figuresOf(info, load));
    show(restarts, Boolean(info.restarts));
    setText(restarts, info.restarts ? restartsOf(info) : "");
    blocks.update(load?.blocks ?? null);
  }
  return { node, update };
}

const isDrained = (info) => info.status === "drained_by_operator";

function restartsOf(info) {
  const times = `${count(info.restarts)} ${info.restarts === 1 ? "restart" : "restarts"}`;
  const why = info.last_restart_reason ? `: ${info.last_restart_reason}` : "";
  return info.last_restart_unix_ms ? `${times}${SEPARATOR}last ${ago(info.last_restart_unix_ms, fresh.nowMs)}${why}` : `${times}${why}`;
}

function figuresOf(info, load) {
  const of = (value, most) => (most ? `${count(value)}/${count(most)}` : count(value));
  const now = load ?? info;
  const texts = [`running ${of(now.running, load?.max_running)}`, `waiting ${of(now.waiting, load?.max_waiting)}`];
  if (now.shadows) texts.push(`${count(now.shadows)} shadows`);
  if (info.usual_wait !== null) texts.push(`usual wait ${seconds(info.usual_wait)}`);
  if (now.refusing) texts.push("refusing");
  if (load?.preempting) texts.push("preempting");
  return load || info.status === "serving" ? texts.join(SEPARATOR) : "no report yet";
}

function blockBar() {
  const used = make("span", { class: "used" });
  const cached = make("span", { class: "cached" });
  const bar = make("div", { class: "blocks", "aria-hidden": "true" }, used, cached);
  const summary = make("span", { class: "small-text muted" });
  const update = (blocks) => {
    show(bar, blocks !== null);
    show(summary, blocks !== null);
    if (blocks === null) return;
    setWidth(used, blocks.used / (blocks.total || 1));
    setWidth(cached, blocks.cached / (blocks.total || 1));
    setText(summary, `KV blocks: ${count(blocks.used)} used, ${count(blocks.cached)} cached, ${count(blocks.free)} free`);
  };
  return { nodes: [bar, summary], update };
}
