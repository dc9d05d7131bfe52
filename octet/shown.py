"""A receipt for people."""

from collections.abc import Iterable

from octet.sdk.decision import Decision, Score
from octet.sdk.receipt import Attempt, Between, Receipt, Timings, Usage, Validation

_DIGEST = 12
_BAR = 24
_LABEL = 14
Rows = list[tuple[str, str]]


def summary(decision: Decision) -> str:
    """Who, how sure, and who says so."""
    sure = "-" if decision.confidence is None else f"{decision.confidence:.2f}"
    return f"{decision.primary or 'nobody'}  {sure}  {decision.source or 'reject'}"


def explained(receipt: Receipt) -> str:
    """The decision and all that led to it."""
    decision = receipt.decision
    rows = [
        *_choice(decision),
        ("intent", decision.intent),
        ("task", _task(decision)),
        ("adapters", ", ".join(decision.adapters)),
        *(("note", note) for note in decision.notes),
        *_between(receipt.between),
        ("digests", _digests(decision)),
        ("request", receipt.request_id),
    ]
    return "\n".join([summary(decision), _table(rows)])


def shown(receipt: Receipt) -> str:
    """Who answered, why, and how it went."""
    rows = [
        ("answered by", _answerer(receipt)),
        *_choice(receipt.decision),
        ("task", _task(receipt.decision)),
        *(("note", note) for note in receipt.decision.notes),
        *_between(receipt.between),
        *(("attempt", _attempt(each)) for each in receipt.attempts if each.reason or len(receipt.attempts) > 1),
        ("admission", _admission(receipt)),
        ("timings", _timings(receipt.timings)),
        ("session", _session(receipt)),
        ("tokens", "" if receipt.usage is None else _tokens(receipt.usage)),
        ("validation", "" if receipt.validation is None else _validation(receipt.validation)),
        ("error", "" if receipt.error is None else f"{receipt.error.reason}: {receipt.error.message}"),
        ("caller", f"{receipt.caller}, tenant {receipt.tenant}" if receipt.caller else ""),
        ("request", receipt.request_id + (f", trace {receipt.trace_id}" if receipt.trace_id else "")),
    ]
    return _table(rows)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Only rows with something in them; a label that repeats is said once."""
    lines, last = [], ""
    for label, text in rows:
        if text:
            lines.append(f"{'' if label == last else label:<{_LABEL}} {text}".rstrip())
            last = label
    return "\n".join(lines)


def _choice(decision: Decision) -> Rows:
    return [
        ("why", decision.why),
        ("decided by", _decided_by(decision)),
        *(("distribution", _score(each, decision.distribution)) for each in decision.distribution),
        ("second choice", decision.second_choice),
    ]


def _decided_by(decision: Decision) -> str:
    if decision.decided_by and decision.decided_by == decision.classifier_digest:
        return f"{decision.source or 'classifier'} {decision.decided_by[:_DIGEST]}"
    return f"{decision.source} {decision.decided_by}".strip()


def _score(score: Score, all_scores: tuple[Score, ...]) -> str:
    width = max(len(each.specialist) for each in all_scores)
    return f"{score.specialist:<{width}} {score.probability:>6.1%} {'#' * round(score.probability * _BAR)}"


def _task(decision: Decision) -> str:
    given = [f"{name} {value}" for name, value in decision.sampling.items()]
    length = [f"at most {decision.max_tokens} tokens"] if decision.max_tokens else []
    return ", ".join([*([decision.task] if decision.task else []), *length, *given])


def _digests(decision: Decision) -> str:
    digests = {
        "request": decision.request_digest,
        "configuration": decision.config_digest,
        "classifier": decision.classifier_digest,
    }
    return ", ".join(f"{name} {digest[:_DIGEST]}" for name, digest in digests.items() if digest)


def _answerer(receipt: Receipt) -> str:
    if not receipt.specialist:
        return "nobody"
    where = f" on {receipt.replica}" if receipt.replica else ""
    revision = f", revision {receipt.lane.revision[:_DIGEST]}" if receipt.lane.revision else ""
    adapters = "".join(f" + {digest[:_DIGEST]}" for digest in receipt.adapters)
    breaker = f", breaker {receipt.breaker}" if receipt.breaker else ""
    return f"{receipt.specialist}{where}{revision}{adapters}{breaker}"


def _between(between: Between | None) -> Rows:
    """Only what is out of the ordinary, and both knobs."""
    if between is None:
        return []
    shadow = between.shadow
    turned = f", set by {between.knobs_by}" if between.knobs_by else ""
    return [
        ("in between", between.why),
        ("in between", "the primary had no room: the second choice answered" if between.spilled else ""),
        ("breaker", between.correctness if between.correctness not in ("", "closed") else ""),
        ("lane", between.lane if between.lane != "serving" else ""),
        ("shadow", "" if shadow is None else " + ".join((shadow.specialist, *shadow.adapters)) + f", {shadow.why}"),
        ("knobs", f"shadow threshold {between.shadow_threshold:g}, priority floor {between.priority_floor}{turned}"),
    ]


def _attempt(attempt: Attempt) -> str:
    result = f"{attempt.reason}: {attempt.message}" if attempt.reason else "answered"
    return f"{attempt.specialist} on {attempt.replica} after {_time(attempt.seconds)}: {result}"


def _admission(receipt: Receipt) -> str:
    if receipt.admission is None:
        return ""
    door = receipt.admission
    said = f"{door.queue_position} in line before, at most {door.max_tokens} tokens, seed {door.seed}"
    if door.forecast is None:
        return said
    slack = "" if door.forecast.slack is None else f", {_time(door.forecast.slack)} before its deadline"
    return f"{said}; forecast: starts after {_time(door.forecast.wait)}, ends after {_time(door.forecast.total)}{slack}"


def _timings(timings: Timings) -> str:
    steps = {
        "decided": timings.decided,
        "dispatched": timings.dispatched,
        "accepted": timings.accepted,
        "first chunk": timings.first_chunk,
    }
    reached = [f"{name} {_time(seconds)}" for name, seconds in steps.items() if seconds is not None]
    return ", ".join([*reached, f"total {_time(timings.total)}"])


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _session(receipt: Receipt) -> str:
    if receipt.session_source in ("", "none"):
        return ""
    return f"{receipt.session_id or 'the user'}, by {receipt.session_source}"


def _validation(validation: Validation) -> str:
    more = f": {validation.detail}" if validation.detail else ""
    return f"{validation.outcome} by {validation.verifier} after {_time(validation.seconds)}{more}"


def _tokens(usage: Usage) -> str:
    miss = "" if usage.miss_reason in ("", "no_session") else f", the rest not: {usage.miss_reason}"
    speed = "" if usage.tokens_per_second is None else f", {usage.tokens_per_second:.1f} tok/s"
    away = "" if usage.timings.preempted is None else f" for {_time(usage.timings.preempted)}"
    return (
        f"{usage.prompt_tokens} prompt ({usage.cache_hit_tokens} cached{miss}), "
        f"{usage.completion_tokens} generated{speed}, {usage.finish_reason or 'unfinished'}, "
        f"preempted {usage.times_preempted} times{away}"
    )
