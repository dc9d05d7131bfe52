"""Which replicas were asked, in which order, and what each said."""

from octet.sdk.receipt import Attempt, Receipt
from octet.why.words import Part, listed, part, reason, sentence, time

MOST_ATTEMPTS = 4
"""A receipt keeps the last ones."""
_DIGEST = 12


def asked(receipt: Receipt) -> Part:
    if not receipt.attempts:
        never = receipt.timings.dispatched is None
        told = "No replica was asked." if never else "A replica was asked; what it said is not on the receipt."
        return part("replicas", told)
    many = len(receipt.attempts) >= MOST_ATTEMPTS
    return part(
        "replicas",
        *(_attempt(number, each) for number, each in enumerate(receipt.attempts, 1)),
        f"A receipt keeps the last {MOST_ATTEMPTS} that were asked; there may have been more before." if many else "",
        _failed_over(receipt),
        _computed_with(receipt),
    )


def _attempt(number: int, attempt: Attempt) -> str:
    where = f"{number}. {attempt.replica or 'a replica'}, of {attempt.specialist or 'somebody'}"
    if not attempt.reason:
        return f"{where}: answered; that took {time(attempt.seconds)}."
    said = f'; in its words: "{attempt.message.strip()}"' if attempt.message.strip() else ""
    return f"{where}: no answer after {time(attempt.seconds)}: {reason(attempt.reason)} ({attempt.reason}){said}."


def failures(receipt: Receipt) -> tuple[Attempt, ...]:
    """Those that did not answer, before one did."""
    answered = [number for number, each in enumerate(receipt.attempts) if not each.reason]
    return receipt.attempts[: answered[-1]] if answered else ()


def _failed_over(receipt: Receipt) -> str:
    before = failures(receipt)
    if not before:
        return ""
    last = next(each for each in reversed(receipt.attempts) if not each.reason)
    names = listed(dict.fromkeys(each.replica or "a replica" for each in before))
    return f"So it went from {names} to {last.replica or 'another'}; nothing of the answer had been said before."


def _computed_with(receipt: Receipt) -> str:
    if not receipt.replica:
        return ""
    lane = receipt.lane
    revision = f", with the model revision {lane.revision[:_DIGEST]}" if lane.revision else ""
    adapters = listed(each[:_DIGEST] for each in lane.adapter_digests)
    applied = f" and the adapters {adapters}" if adapters else ""
    health = f"; its health breaker was {receipt.breaker.replace('_', ' ')}" if receipt.breaker else ""
    return sentence(f"{receipt.replica} took it{revision}{applied}{health}")
