"""What became of a request, in one line."""

from octet.sdk.receipt import Receipt
from octet.telemetry.outcome import outcome_of
from octet.why.asked import failures
from octet.why.words import listed, reason, time, times


def headline(receipt: Receipt) -> str:
    took = time(receipt.timings.total)
    if receipt.error is not None:
        why = reason(receipt.error.reason) if receipt.error.reason else "an error without a reason"
        return f"{_unanswered(receipt)} after {took}: {why}{_cause(receipt)}"
    if receipt.usage is None:
        return f"not answered, as far as the receipt goes: {took} after it came"
    where = f" on {receipt.replica}" if receipt.replica else ""
    return f"{receipt.specialist or 'somebody'}{where} answered it in {took}{_remarks(receipt)}"


_CAUSES = {
    "shadow_only": "its answers were wrong too often",
    "recovering": "its answers had been wrong too often, and it was recovering",
    "held_open": "an operator held its breaker open",
}


def _cause(receipt: Receipt) -> str:
    """Why the primary was kept from answering, where that is what became of it."""
    if receipt.error is None or receipt.error.reason != "demoted" or receipt.between is None:
        return ""
    cause = _CAUSES.get(receipt.between.correctness, "")
    return f" ({cause})" if cause else ""


def _unanswered(receipt: Receipt) -> str:
    if receipt.timings.first_chunk is not None:
        return "its answer was cut off"
    outcome = outcome_of(receipt.wire)
    if receipt.admission is None or not receipt.replica:
        return outcome
    return f"let in by {receipt.replica}, and {outcome}"


def _remarks(receipt: Receipt) -> str:
    between, before = receipt.between, failures(receipt)
    remarks = []
    if between is not None and between.instead_of and between.instead_of != receipt.specialist:
        remarks.append(f"in the place of {between.instead_of}")
    if between is not None and between.spilled:
        remarks.append("spilled over for want of room")
    elif before:
        names = listed(dict.fromkeys(each.replica or "a replica" for each in before))
        remarks.append(f"after {names} had not")
    if receipt.usage is not None and receipt.usage.times_preempted:
        remarks.append(f"preempted {times(receipt.usage.times_preempted)}")
    if between is not None and between.shadow is not None:
        remarks.append("with a shadow")
    return "".join(f", {each}" for each in remarks)
