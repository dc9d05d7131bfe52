// Whether a specialist answers callers now, as far as the overview shows it.

const OPEN_STATES = new Set(["shadow_only", "recovering"]);

export function serves(view) {
  return !isOpen(view.breaker) && view.replicas.some(({ info }) => info.status === "serving" && info.health_breaker !== "open");
}

function isOpen(breaker) {
  if (breaker === null) return false;
  return breaker.hold ? breaker.hold === "open" : OPEN_STATES.has(breaker.state);
}
