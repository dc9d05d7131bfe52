"""The sections of an explanation, from a request's arrival to what happened after its answer."""

from collections.abc import Iterable, Iterator, Sequence

from octet.cli.receipts import CAPACITY_REASON_NAMES
from octet.client.operator import RequestExplanation
from octet.client.receipts import DecisionInfo, Receipt, Usage
from octet.client.records import AttemptInfo, AuditEntry, ForecastInfo, Shadow
from octet.telemetry.outcomes import request_outcome
from octet.terminal import format_moment, format_seconds, pluralize

Sentences = Iterator[str]  # empty sentences are left out
MAX_ATTEMPTS = 4  # maximum attempts on a receipt, which keeps the last ones
_DIGEST = 12
_MOMENT = "%Y-%m-%d %H:%M:%S %z"
_MAX_SCORES = 8
_MAX_CHANGES = 20
REASON_TEXTS = {
    "malformed": "the request could not be parsed",
    "invalid_field": "a field was missing, out of range or too large",
    "prompt_too_long": "the prompt was too long",
    "unknown_adapter": "it named an unknown adapter",
    "adapter_refused": "an adapter was refused",
    "queue_full": "the queue was full",
    "draining": "the server was draining and accepted no new requests",
    "caller_stalled": "the caller stopped reading",
    "deadline": "its deadline passed",
    "engine_failed": "the engine failed while computing it",
    "replica_failed": "the replica could no longer serve",
    "not_ready": "the server was not ready yet",
    "cancelled": "it was cancelled, or its caller disconnected",
    "no_specialist": "no specialist should answer it",
    "unknown_specialist": "it named an unknown specialist",
    "no_replica": "no replica could be reached",
    "replica_lost": "the replica was lost",
    "unknown_request": "there is no such request",
    "duplicate_request": "a request with the same id was running",
    "internal": "the server failed",
    "deadline_unreachable": "it could not have been answered before its deadline",
    "would_delay_others": "admitting it would have made an admitted request miss its deadline",
    "shed": "it was shed for a request of higher priority",
    "below_floor": "its priority was below the floor",
    "demoted": "the specialist is demoted and no fallback can answer",
    "unauthenticated": "its API key was missing or unknown",
    "forbidden": "its API key does not allow this",
    "key_limit": "its API key had reached a limit",
    "no_tools": "the specialist's model cannot call tools",
    "store_unavailable": "the store was unavailable",
    "quarantined": "two replicas had died with the same content in flight",
}
_SESSION_SOURCES = {
    "session_id": "by its session_id",
    "metadata": "by the session_id of its metadata",
    "user": "by its user_id",
}
_BREAKER_STATES = {
    "closed": "was closed: its answers were trusted",
    "shadow_only": "was open: its answers were wrong too often, and it got only shadow traffic",
    "recovering": "was recovering: it had been open, and still got only shadow traffic until its window was over",
    "held_open": "was held open by an operator: it got only shadow traffic",
    "held_closed": "was held closed by an operator: it served regardless of its answers",
}
_DEMOTION_CAUSES = {
    "shadow_only": "its answers were wrong too often",
    "recovering": "its answers had been wrong too often, and it was recovering",
    "held_open": "an operator held its breaker open",
}
_MISS_REASONS = {
    "first_time": "its conversation was new to the replica",
    "evicted": "they had been computed there before, but have been evicted since",
    "other_adapter": "the conversation's last request there used other adapters",
    "diverged": "the prompt does not continue the conversation's earlier prompt",
    "cache_off": "the cache is disabled",
    "no_session": "it belongs to no conversation",
    "no_boundary": "the blocks were cached, but not the state to resume from",
}
_FINISH_REASONS = {
    "stop": "The answer ended on its own.",
    "cancelled": "The replica stopped because the request was cancelled.",
    "deadline": "The replica stopped at the request's deadline.",
    "error": "The replica stopped because of an error.",
    "shed": "The replica shed it for a request of higher priority.",
}
_SHADOW_REASONS = {
    "low_confidence": "because the decision was not confident enough",
    "fresh_lane": "because a lane is fresh and its answers are compared",
    "demoted": "because that specialist gets only shadow traffic until its answers pass again",
    "rule_routed": "because a rule or the intent chose the specialist and the intent asks for such shadows",
}
_SHADOW_ENDS = {
    "no_budget": "its intent had used up its share of shadows",
    "no_slot": "too many shadows were running",
    "no_replica": "no replica had a free slot",
    "no_memory": "too many bytes of shadows were held",
    "no_choice": "the classifier named no other specialist before the answer ended",
    "same_lane": "the lane that it was meant for answered the request itself",
    "quarantined": "the request's content is suspected of killing replicas",
    "no_answer": "the request got no answer text to compare it with",
    "closed": "the router was stopping",
    "cancelled": "the request's own answer was not completed",
    "displaced": "it gave its slot to another intent or lane",
    "refused": "its replica refused it",
    "too_long": "its answer was too long",
    "timed_out": "it did not end in time",
    "broken": "the connection to its replica broke",
    "invalid": "its replica sent an invalid answer",
    "error": "an error occurred",
}
_VERIFIER_OUTCOMES = {
    "passed": "passed the verifier",
    "failed": "failed the verifier",
    "skipped": "could not be judged",
    "unavailable": "was not judged: no verifier was available",
}


def explanation_sections(explanation: RequestExplanation, *, is_complete: bool) -> Iterator[tuple[str, Sentences]]:
    """Yield titles and sentences. `is_complete` means that `explanation` has all events of the request."""
    receipt = explanation.receipt
    yield "arrival", _arrival(receipt)
    yield "decision", _decision(receipt.decision)
    yield "dispatch", _dispatch(receipt)
    yield "replicas", _attempts(receipt)
    yield "admission", _admission(receipt)
    yield "work", _work(receipt)
    yield "end", _end(receipt)
    yield "shadow", _shadow(explanation, is_complete=is_complete)
    yield "verifier", _verifier(explanation)
    yield "changes", _changes(explanation) if is_complete else iter(())
    yield "trace", iter([f"Its trace id is {receipt.trace_id}."] if receipt.trace_id else [])


def format_headline(receipt: Receipt) -> str:
    """Return the outcome in one line."""
    took, error, between = format_seconds(receipt.timings.total), receipt.error, receipt.between
    if error is not None:
        is_demoted = error.reason == "demoted"
        cause = _DEMOTION_CAUSES.get(between.correctness) if is_demoted and between is not None else None
        return f"{_unanswered(receipt)} after {took}: {_describe_reason(error.reason)}{f' ({cause})' if cause else ''}"
    if receipt.usage is None:
        return f"not answered when the receipt was written, {took} after its arrival"
    replica = f" on {receipt.replica}" if receipt.replica else ""
    remarks = "".join(f", {each}" for each in _remarks(receipt))
    return f"{receipt.specialist or 'a specialist'}{replica} answered it in {took}{remarks}"


def _unanswered(receipt: Receipt) -> str:
    if receipt.timings.first_chunk is not None:
        return "its answer was cut off"
    outcome = request_outcome(receipt.wire)
    if receipt.admission is None or not receipt.replica:
        return outcome
    return f"admitted by {receipt.replica}, then {outcome}"


def _remarks(receipt: Receipt) -> Iterator[str]:
    between, failed = receipt.between, _failed_attempts(receipt)
    if between is not None and between.instead_of and between.instead_of != receipt.specialist:
        yield f"in place of {between.instead_of}"
    if between is not None and between.spilled:
        yield "spilled over for lack of capacity"
    elif failed:
        yield f"after {_replica_names(failed)} failed"
    if receipt.usage is not None and receipt.usage.times_preempted:
        yield f"preempted {_format_times(receipt.usage.times_preempted)}"
    if between is not None and between.shadow is not None and between.shadow.replica:
        yield "with a shadow"


def _arrival(receipt: Receipt) -> Sentences:
    decision = receipt.decision
    when = f" on {format_moment(receipt.created_unix_ms, _MOMENT)}" if receipt.created_unix_ms else ""
    yield f"It arrived{when} with priority {receipt.priority} (higher priorities are served first)."
    if receipt.session_source in ("", "none"):
        yield "It belongs to no conversation."
    else:
        source = _SESSION_SOURCES.get(receipt.session_source, f"by {receipt.session_source}")
        name = f" {receipt.session_id}" if receipt.session_id else ""
        yield f"It belongs to the conversation{name}, {source}."
    if receipt.caller or receipt.tenant:
        key = f"the key {receipt.caller}" if receipt.caller else "a key"
        yield f"Its caller used {key}{f' of the tenant {receipt.tenant}' if receipt.tenant else ''}."
    if decision.intent:
        yield f"It declared the intent {decision.intent}."
    if decision.task:
        limit = f", with at most {decision.max_tokens} tokens" if decision.max_tokens else ""
        yield f"It was classified as the task {decision.task}{limit}."


def _decision(decision: DecisionInfo) -> Sentences:
    if not decision.primary and not decision.why and not decision.source:
        yield "It failed before a specialist was chosen."
        return
    yield _choice(decision)
    if decision.why.strip():
        yield f'The router\'s reason: "{decision.why.strip()}".'
    yield _confidence(decision)
    if decision.second_choice and decision.primary:
        yield f"The second choice was {decision.second_choice}."
    elif decision.primary:
        yield "There was no second choice."
    if decision.adapters:
        yield f"The chosen adapters were {_join_names(decision.adapters)}."
    yield from (f"Note: {_end_sentence(note)}" for note in decision.notes if note.strip())


def _choice(decision: DecisionInfo) -> str:
    primary = decision.primary
    if not primary:
        return "No specialist was chosen to answer it."
    name = f" {decision.decided_by}" if decision.decided_by else ""
    sentences = {
        "forced": f"The caller named {primary}.",
        "intent": f"The declared intent{name} belongs to {primary}.",
        "rule": f"The rule{name} matched, which selects {primary}.",
        "classifier": f"The classifier chose {primary}.",
        "default": f"No decision was certain enough, so it went to the default specialist {primary}.",
        "bare": f"No specialist fits, so the bare model of {primary} was chosen: without system prompt and adapters.",
    }
    return sentences.get(decision.source, f"{primary} was chosen by {decision.source or 'an unnamed source'}.")


def _confidence(decision: DecisionInfo) -> str:
    confidence = ""
    if decision.confidence is not None:
        confidence = f"The classifier's confidence in {decision.primary or 'that'} was {decision.confidence:.2f}."
    others = [each for each in decision.distribution if each.specialist != decision.primary]
    if not others:
        return confidence
    scores = _join_names(f"{each.specialist} with {each.probability:.2f}" for each in others[:_MAX_SCORES])
    more = len(others) - _MAX_SCORES
    return f"{confidence} Next came {scores}{f', and {more} more' if more > 0 else ''}.".strip()


def _dispatch(receipt: Receipt) -> Sentences:
    between = receipt.between
    if between is None:
        yield "It failed before breakers and knobs were checked."
        return
    if between.correctness:
        state = _BREAKER_STATES.get(between.correctness, f"was {between.correctness.replace('_', ' ')}")
        yield f"The correctness breaker of {receipt.decision.primary or 'the primary'} {state}."
    why = _end_sentence(between.why)
    if between.instead_of:
        why = f"Another specialist was chosen to answer in place of {between.instead_of}" + (f": {why}" if why else ".")
    yield why
    if between.lane == "fresh":
        yield "The chosen lane was fresh: it had too little history to be trusted."
    elif between.lane not in ("", "serving"):
        yield f"The chosen lane was {between.lane}."
    source = f"last set by {between.knobs_by}" if between.knobs_by else "as configured"
    knobs = f"a shadow threshold of {between.shadow_threshold:g} and a priority floor of {between.priority_floor}"
    yield f"It was subject to {knobs}, {source}."
    if between.spilled:  # name only specialists of the attempts that were kept
        full = [each.specialist for each in receipt.attempts if each.reason in CAPACITY_REASON_NAMES]
        names = _join_names(dict.fromkeys(name for name in full if name and name != receipt.specialist))
        is_accepted = receipt.specialist and receipt.admission is not None
        then = f"{receipt.specialist} accepted it" if is_accepted else "another specialist was asked"
        yield f"It spilled over: {names or 'the first choice'} had no capacity, and {then}."


def _attempts(receipt: Receipt) -> Sentences:
    if receipt.timings.waited is not None:
        yield f"It waited {format_seconds(receipt.timings.waited)} for a replica to come back."
    if not receipt.attempts:
        was_asked = receipt.timings.dispatched is not None
        yield "A replica was asked; its reply is not on the receipt." if was_asked else "No replica was asked."
        return
    yield from (_attempt(number, each) for number, each in enumerate(receipt.attempts, 1))
    if len(receipt.attempts) >= MAX_ATTEMPTS:
        yield f"A receipt keeps the last {MAX_ATTEMPTS} attempts; there may have been earlier ones."
    failed = _failed_attempts(receipt)
    if failed:
        last = next(each for each in reversed(receipt.attempts) if not each.reason)
        to = last.replica or "another"
        yield f"It failed over from {_replica_names(failed)} to {to} before any of the answer was sent."
    if receipt.replica:
        lane = receipt.lane
        revision = f", with the model revision {lane.revision[:_DIGEST]}" if lane.revision else ""
        adapters = _join_names(each[:_DIGEST] for each in lane.adapter_digests)
        applied = f" and the adapters {adapters}" if adapters else ""
        health = f"; its health breaker was {receipt.breaker.replace('_', ' ')}" if receipt.breaker else ""
        yield _end_sentence(f"{receipt.replica} served it{revision}{applied}{health}")


def _attempt(number: int, attempt: AttemptInfo) -> str:
    where = f"{number}. {attempt.replica or 'a replica'} of {attempt.specialist or 'a specialist'}"
    took = format_seconds(attempt.seconds)
    if not attempt.reason:
        return f"{where}: answered in {took}."
    message = f'; its message: "{attempt.message.strip()}"' if attempt.message.strip() else ""
    return f"{where}: no answer after {took}: {_describe_reason(attempt.reason)} ({attempt.reason}){message}."


def _failed_attempts(receipt: Receipt) -> Sequence[AttemptInfo]:
    """Return the attempts before the one that answered; empty if none answered."""
    answered = [number for number, each in enumerate(receipt.attempts) if not each.reason]
    return receipt.attempts[: answered[-1]] if answered else ()


def _replica_names(attempts: Iterable[AttemptInfo]) -> str:
    return _join_names(dict.fromkeys(each.replica or "a replica" for each in attempts))


def _admission(receipt: Receipt) -> Sentences:
    admission = receipt.admission
    if admission is None:
        yield "No replica admitted it."
        return
    ahead = "nothing" if admission.queue_position == 0 else pluralize(admission.queue_position, "request")
    tokens = f"{pluralize(admission.prompt_tokens, 'prompt token')}, at most {pluralize(admission.max_tokens, 'token')}"
    queue = f"{receipt.replica or 'The replica'} admitted it with {ahead} ahead in the queue"
    yield f"{queue}: {tokens} to generate, seed {admission.seed}."
    if admission.reserved:
        yield "It took the place that its ticket had reserved."
    if admission.forecast is None:
        yield "There was no forecast: nothing had been measured yet."
    else:
        yield from _forecast(admission.forecast)
    if receipt.usage is not None:
        queued, total = receipt.usage.timings.queued, format_seconds(receipt.usage.timings.total)
        started = "never started" if queued is None else f"started after {format_seconds(queued)}"
        yield f"By the replica's clock it {started} and ended after {total}."


def _forecast(forecast: ForecastInfo) -> Sentences:
    wait, total, slack = format_seconds(forecast.wait), format_seconds(forecast.total), forecast.slack
    deadline = "; it had no deadline"
    if slack is not None:
        deadline = f", {format_seconds(abs(slack))} {'after' if slack < 0 else 'before'} its deadline"
    first = "" if forecast.first is None else f", to send its first token after {format_seconds(forecast.first)}"
    yield f"It was expected to start after {wait}{first} and to end after {total}{deadline}."
    if not forecast.displaced and not forecast.set_aside:
        yield "No other request was displaced for it."
    for number, how in ((forecast.displaced, "shed"), (forecast.set_aside, "suspended")):
        if number:
            yield f"{pluralize(number, 'request')} of lower priority {_was(number)} {how} for it."


def _was(number: int) -> str:
    return "was" if number == 1 else "were"


def _work(receipt: Receipt) -> Sentences:
    usage = receipt.usage
    if usage is None:
        yield "Its token counts are not on the receipt." if receipt.admission is not None else ""
        return
    computed = usage.prompt_tokens - usage.cache_hit_tokens
    prompt = f"Of {pluralize(usage.prompt_tokens, 'prompt token')}, {usage.cache_hit_tokens} came from the cache"
    why = "; everything reusable was reused" if usage.timings.queued is not None else ""
    if usage.miss_reason:
        why = f": {_MISS_REASONS.get(usage.miss_reason, usage.miss_reason.replace('_', ' '))} ({usage.miss_reason})"
    yield f"{prompt} and {computed} {_was(computed)} computed{why}."
    rate = "" if usage.tokens_per_second is None else f", {usage.tokens_per_second:.1f} per second"
    yield f"It generated {pluralize(usage.completion_tokens, 'token')}{rate}."
    if usage.drafted_tokens:
        right = f"{usage.accepted_tokens} {_was(usage.accepted_tokens)} right and took no step of their own"
        yield f"Steps guessed {pluralize(usage.drafted_tokens, 'token')} ahead: {right}."
    if usage.times_preempted == 0:
        yield "It was never preempted."
        return
    waited = usage.timings.preempted
    duration = "; the duration is not on the receipt" if waited is None else f", for {format_seconds(waited)} in total"
    yield f"It was preempted {_format_times(usage.times_preempted)}{duration}."


def _end(receipt: Receipt) -> Sentences:
    usage, error = receipt.usage, receipt.error
    if usage is not None:
        yield _finish(usage, receipt.admission.max_tokens if receipt.admission else 0)
    if error is not None:
        name = f" ({error.reason})" if error.reason else ""
        message = f' The server\'s message: "{error.message.strip()}".' if error.message.strip() else ""
        yield f"The caller received an error: {_describe_reason(error.reason)}{name}.{message}"
        if error.field or error.limit:
            field = f"The invalid field was {error.field}. " if error.field else ""
            limit = f"Allowed: {_end_sentence(error.limit)} " if error.limit else ""
            value = f"Received: {_end_sentence(error.value)}" if error.value else ""
            yield f"{field}{limit}{value}".strip()
        if error.retry_after is not None:
            yield f"A retry was advised after {format_seconds(error.retry_after)}."
    elif usage is None:
        yield "How it ended is not on the receipt."


def _finish(usage: Usage, max_tokens: int) -> str:
    if usage.stop_string is not None:
        return f'The answer ended at the stop string "{usage.stop_string}".'
    if usage.finish_reason == "length":
        return "The answer reached its maximum length" + (f", {pluralize(max_tokens, 'token')}." if max_tokens else ".")
    if not usage.finish_reason:
        return ""
    return _FINISH_REASONS.get(usage.finish_reason, f"The answer ended with {usage.finish_reason}.")


def _shadow(explanation: RequestExplanation, *, is_complete: bool) -> Sentences:
    between, comparison = explanation.receipt.between, explanation.comparison
    order = None if between is None else between.shadow
    if order is None and comparison is None:
        yield "" if between is None else "No shadow was planned."
        return
    if order is not None and between is not None:
        confidence, threshold = explanation.receipt.decision.confidence, between.shadow_threshold
        why = _SHADOW_REASONS.get(order.why, "for an unknown reason")
        if order.why == "low_confidence" and confidence is not None and confidence < threshold:
            why = f"because the confidence of {confidence:.2f} was below the threshold of {threshold:g}"
        to = " + ".join((order.specialist or "a specialist", *order.adapters))
        yield f"A shadow was planned for {to}, {why} ({order.why})."
        yield _shadow_end(order)
    if comparison is not None:
        agreed = "The two answers agreed" if comparison.agreed else "The two answers did not agree"
        primary = f"that of {comparison.primary} {_verifier_outcome(comparison.primary_outcome)}"
        shadow = f"that of {comparison.shadow} {_verifier_outcome(comparison.shadow_outcome)}"
        yield f"{agreed}: {primary}, {shadow}; their similarity is {comparison.similarity:.0%}."
    elif order is not None and not order.replica:
        return
    elif is_complete:
        yield "There is no comparison: the shadow did not answer, or has not been compared yet."
    else:
        yield "The comparison is visible to operators only."


def _shadow_end(order: Shadow) -> str:
    """Say what had become of the shadow when the receipt was written."""
    if not order.outcome:
        return "It had not been sent when the receipt was written."
    sent = f"It was sent to {order.replica}" if order.replica else "It was not sent"
    if not order.reason:
        return f"{sent}, and had answered." if order.outcome == "answered" else f"{sent}."
    why = _SHADOW_ENDS.get(order.reason, f"of the reason {order.reason}")
    return f"{sent}, but was {order.outcome}: {why}." if order.replica else f"{sent}: {why}."


def _verifier_outcome(outcome: str) -> str:
    return _VERIFIER_OUTCOMES.get(outcome, f"was {outcome}" if outcome else "was not judged")


def _verifier(explanation: RequestExplanation) -> Sentences:
    validation = explanation.receipt.validation
    if validation is not None:
        detail = f": {_end_sentence(validation.detail)}" if validation.detail.strip() else "."
        result = {"passed": "passed it", "failed": "failed it"}.get(validation.outcome, "could not judge it")
        judged = f"the verifier {validation.verifier or 'of its task'} {result}"
        yield f"Its caller asked for validation: {judged} after {format_seconds(validation.seconds)}{detail}"
    if explanation.judged:
        yield f"Sampled for evaluation, the answer {_spell_verdict(explanation)}."


def _spell_verdict(explanation: RequestExplanation) -> str:
    kind, outcome = explanation.judged_kind, explanation.judged
    if kind == "degenerate":
        return f"{outcome}, because its text is degenerate: {explanation.judged_why}"
    if kind == "cut":
        return "was cut, and could not be judged" if outcome == "skipped" else f"was cut, and what is there {outcome}"
    return outcome


def _changes(explanation: RequestExplanation) -> Sentences:
    if not explanation.changes:
        yield "No related change was made in the hour before."
    for each in explanation.changes[:_MAX_CHANGES]:
        yield _change(each, explanation.receipt.created_unix_ms)
    more = len(explanation.changes) - _MAX_CHANGES
    if more > 0:
        yield f"And {more} earlier changes: see octet audit."


def _change(entry: AuditEntry, arrived_ms: int) -> str:
    seconds = (arrived_ms - entry.at_unix_ms) / 1000
    if seconds < 0:
        when = f"{format_seconds(-seconds)} after its arrival"
    else:
        when = f"{seconds / 60:.0f} min before its arrival" if seconds >= 60 else f"{seconds:.0f} s before its arrival"
    values = f", {entry.before or '-'} -> {entry.after or '-'}" if entry.before or entry.after else ""
    why = f" ({entry.why.strip()})" if entry.why.strip() else ""
    return f"{when}: {entry.who or 'unknown'}: {entry.what.replace('_', ' ')} {entry.subject}{values}{why}"


def _describe_reason(reason: str) -> str:
    """Describe the reason. An unknown reason, from a newer server, is returned with spaces instead of underscores."""
    return REASON_TEXTS.get(reason, reason.replace("_", " ")) if reason else "an error without a reason"


def _format_times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _join_names(names: Iterable[str]) -> str:
    """Join as "a, b and c"."""
    *most, last = list(names) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _end_sentence(text: str) -> str:
    """Add a full stop unless the text is empty or already ends a sentence."""
    stripped = text.strip()
    return stripped if not stripped or stripped[-1] in ".!?" else f"{stripped}."
