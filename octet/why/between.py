"""What stood between the decision and the replicas: breaker, stand-in, lane, knobs."""

from octet.sdk.receipt import Between, Receipt
from octet.why.words import NO_ROOM, Part, listed, part, sentence

_BREAKERS = {
    "closed": "was closed: its answers were trusted",
    "shadow_only": "was open: its answers were wrong too often, and it only shadowed",
    "recovering": "was recovering: it had been open, and still only shadowed until its window was over",
    "held_open": "was held open by an operator: it only shadowed",
    "held_closed": "was held closed by an operator: it served whatever its answers were like",
}


def between(receipt: Receipt) -> Part:
    stood = receipt.between
    if stood is None:
        return part("in between", "It never came to the breakers and knobs.")
    return part(
        "in between",
        _breaker(stood, receipt.decision.primary),
        _stand_in(stood),
        _lane(stood),
        _knobs(stood),
        _spill(receipt, stood),
    )


def _breaker(stood: Between, primary: str) -> str:
    if not stood.correctness:
        return ""
    state = _BREAKERS.get(stood.correctness, f"was {stood.correctness.replace('_', ' ')}")
    return f"The correctness breaker of {primary or 'the primary'} {state}."


def _stand_in(stood: Between) -> str:
    why = sentence(stood.why)
    if stood.instead_of:
        return f"Somebody else was to answer in the place of {stood.instead_of}" + (f": {why}" if why else ".")
    return why


def _lane(stood: Between) -> str:
    if stood.lane == "fresh":
        return "The lane that was to answer was fresh: it had too little history to be trusted."
    return "" if stood.lane in ("", "serving") else f"The lane that was to answer was {stood.lane}."


def _knobs(stood: Between) -> str:
    turned = f"last turned by {stood.knobs_by}" if stood.knobs_by else "as the configuration has them"
    return (
        f"The knobs stood at a shadow threshold of {stood.shadow_threshold:g} and a priority floor of "
        f"{stood.priority_floor}, {turned}."
    )


def had_no_room(receipt: Receipt) -> tuple[str, ...]:
    """Specialists of which it is known, in the order they were asked, without whoever took it."""
    full = [each.specialist for each in receipt.attempts if each.reason in NO_ROOM]
    return tuple(dict.fromkeys(name for name in full if name and name != receipt.specialist))


def _spill(receipt: Receipt, stood: Between) -> str:
    """Only the names that the attempts give: a receipt keeps the last ones."""
    if not stood.spilled:
        return ""
    full = listed(had_no_room(receipt)) or "whoever was asked first"
    if receipt.specialist and receipt.admission is not None:
        return f"It spilled over: {full} had no room, and {receipt.specialist} took it."
    return f"It spilled over: {full} had no room, and somebody else was asked."
