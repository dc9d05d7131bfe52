"""What went along and what came behind: the shadow, the verifier, the operators."""

from collections.abc import Sequence

from octet.sdk.operating import AuditEntry, Comparison
from octet.sdk.receipt import Receipt, Shadow
from octet.sdk.story import Story
from octet.why.words import Part, part, sentence, time

_SHADOWS = {
    "low_confidence": "because the decision was not sure enough",
    "fresh_lane": "because a lane is fresh and its answers are to be compared",
    "demoted": "because that one only shadows now, and its answers show when it is fit again",
}

_MOST_CHANGES = 20
_CHECKS = {"passed": "passed it", "failed": "failed it"}


def shadow(story: Story, *, is_whole: bool) -> Part:
    between = story.receipt.between
    order = None if between is None else between.shadow
    if order is None and story.comparison is None:
        return part("shadow", "" if between is None else "No copy of it was ordered of anybody.")
    return part(
        "shadow",
        "" if order is None else _order(order, story.receipt),
        "" if story.comparison is None else _comparison(story.comparison),
        _unknown(is_whole=is_whole) if story.comparison is None else "",
    )


def _order(order: Shadow, receipt: Receipt) -> str:
    to = " + ".join((order.specialist or "somebody", *order.adapters))
    return f"A copy that nobody waits for was ordered of {to}, {_why(order, receipt)} ({order.why})."


def _why(order: Shadow, receipt: Receipt) -> str:
    sure, between = receipt.decision.confidence, receipt.between
    if order.why == "low_confidence" and sure is not None and between is not None and sure < between.shadow_threshold:
        return f"because the confidence of {sure:.2f} was below the threshold of {between.shadow_threshold:g}"
    return _SHADOWS.get(order.why, "for a reason that has no words here")


def _comparison(found: Comparison) -> str:
    verdict = "The two answers agreed" if found.agreed else "The two answers did not agree"
    return (
        f"{verdict}: that of {found.primary} {_outcome(found.primary_outcome)}, that of {found.shadow} "
        f"{_outcome(found.shadow_outcome)}; they are {found.similarity:.0%} alike."
    )


def _outcome(word: str) -> str:
    return {
        "passed": "passed the verifier",
        "failed": "failed the verifier",
        "skipped": "could not be judged",
        "unavailable": "was not judged: no verifier was there",
    }.get(word, f"was {word}" if word else "was not judged")


def _unknown(*, is_whole: bool) -> str:
    if is_whole:
        return "No comparison is known: the copy was not sent, did not answer, or has not been compared yet."
    return "What came of it only operators see."


def verdict(story: Story) -> Part:
    asked = story.receipt.validation
    said = ""
    if asked is not None:
        detail = f": {sentence(asked.detail)}" if asked.detail.strip() else "."
        verdict_on = _CHECKS.get(asked.outcome, "could say nothing about it")
        took = f"after {time(asked.seconds)}{detail}"
        said = f"Its caller asked for a check: the verifier {asked.verifier or 'of its task'} {verdict_on} {took}"
    judged = f"Looked at afterwards, as a sample, the answer {story.judged}." if story.judged else ""
    return part("verifier", said, judged)


def changes(story: Story, *, is_whole: bool) -> Part:
    if not is_whole:
        return part("changes")
    if not story.changes:
        return part("changes", "Nothing that concerns it was changed in the hour before.")
    more = len(story.changes) - _MOST_CHANGES
    rest = f"And {more} more before those: octet audit has them." if more > 0 else ""
    return part("changes", *_entries(story.changes[:_MOST_CHANGES], story.receipt.created_unix_ms), rest)


def _entries(entries: Sequence[AuditEntry], arrived_ms: int) -> list[str]:
    return [f"{_when(each.at_unix_ms, arrived_ms)}: {_entry(each)}" for each in entries]


def _when(at_ms: int, arrived_ms: int) -> str:
    seconds = (arrived_ms - at_ms) / 1000
    if seconds < 0:
        return f"{time(-seconds)} after it came"
    return f"{seconds / 60:.0f} min before it came" if seconds >= 60 else f"{seconds:.0f} s before it came"


def _entry(entry: AuditEntry) -> str:
    moved = f", {entry.before or '-'} -> {entry.after or '-'}" if entry.before or entry.after else ""
    why = f" ({entry.why.strip()})" if entry.why.strip() else ""
    return f"{entry.who or 'somebody'}: {entry.what.replace('_', ' ')} {entry.subject}{moved}{why}"
