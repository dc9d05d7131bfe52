"""Who decided who should answer, and why."""

from octet.sdk.decision import Decision
from octet.sdk.receipt import Receipt
from octet.why.words import Part, listed, part, sentence

_MOST_SCORES = 8


def choice(receipt: Receipt) -> Part:
    decision = receipt.decision
    if not decision.primary and not decision.why and not decision.source:
        return part("decision", "Nobody decided who should answer it: it never came that far.")
    return part(
        "decision",
        _who(decision),
        f'In the router\'s own words: "{decision.why.strip()}".' if decision.why.strip() else "",
        _confidence(decision),
        _second(decision),
        f"It was to be answered with the adapters {listed(decision.adapters)}." if decision.adapters else "",
        *(f"Noticed on the way: {sentence(note)}" for note in decision.notes if note.strip()),
    )


def _who(decision: Decision) -> str:
    primary, by = decision.primary, decision.decided_by
    if not primary:
        return "Nobody was to answer it."
    if decision.source == "forced":
        return f"The caller named {primary}."
    if decision.source == "intent":
        return f"The declared intent{f' {by}' if by else ''} belongs to {primary}."
    if decision.source == "rule":
        return f"The rule{f' {by}' if by else ''} recognised it as one for {primary}."
    if decision.source == "classifier":
        return f"The classifier chose {primary}."
    if decision.source == "default":
        return f"Nobody was sure of it; {primary} takes what nobody is sure of."
    return f"{primary} was chosen, by {decision.source or 'nobody that is named'}."


def _confidence(decision: Decision) -> str:
    sure = (
        ""
        if decision.confidence is None
        else f"The classifier's confidence in {decision.primary or 'that'} was {decision.confidence:.2f}."
    )
    others = [each for each in decision.distribution if each.specialist != decision.primary]
    if not others:
        return sure
    shown = listed(f"{each.specialist} with {each.probability:.2f}" for each in others[:_MOST_SCORES])
    more = len(others) - _MOST_SCORES
    rest = f", and {more} more" if more > 0 else ""
    return f"{sure} Next came {shown}{rest}.".strip()


def _second(decision: Decision) -> str:
    if not decision.primary:
        return ""
    if not decision.second_choice:
        return "Nobody was named to take over where that is not possible."
    return f"The second choice, where that is not possible, was {decision.second_choice}."
