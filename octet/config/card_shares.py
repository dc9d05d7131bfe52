"""Which share of a GPU's memory each replica takes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from octet.config.ensemble import SpecialistConfig

USUAL_SHARE = 0.9
"""What replicas without `memory_fraction` and `kv_memory` take of a card, together with all others on it."""
_ROUNDING = 1e-9


def card_of(specialist: SpecialistConfig) -> str | None:
    """Return the card on which replicas of this specialist run, such as `cuda:0`. None if they run on no card here."""
    if specialist.engine != "native" or specialist.device == "cpu" or specialist.addresses:
        return None
    return "cuda:0" if specialist.device == "cuda" else specialist.device


def split_cards(specialists: Iterable[SpecialistConfig], sized: frozenset[str]) -> tuple[SpecialistConfig, ...]:
    """Give equal shares of what others leave of USUAL_SHARE to specialists on a card without a share. Those named in
    `sized` keep a pool of `kv_memory` bytes."""
    specialists = tuple(specialists)
    taken = shares_by_card(specialists)
    without = [each for each in specialists if card_of(each) and each.memory_fraction is None]
    waiting = [each for each in without if each.name not in sized]
    num_replicas: defaultdict[str | None, int] = defaultdict(int)
    for each in waiting:
        num_replicas[card_of(each)] += each.replicas
    names = {each.name for each in waiting}

    def share(specialist: SpecialistConfig) -> float:
        card = card_of(specialist)
        left = USUAL_SHARE - taken.get(str(card), 0.0)
        return max(0.0, left) / num_replicas[card]

    return tuple(replace(each, memory_fraction=share(each)) if each.name in names else each for each in specialists)


def shares_by_card(specialists: Iterable[SpecialistConfig]) -> Mapping[str, float]:
    """Return the sum of the shares of all replicas on each card. A pool of `kv_memory` bytes is no share."""
    sums: defaultdict[str, float] = defaultdict(float)
    for each in specialists:
        if (card := card_of(each)) is not None:
            sums[card] += each.replicas * (each.memory_fraction or 0.0)
    return sums


def share_problems(specialists: Iterable[SpecialistConfig]) -> Iterator[tuple[str, str]]:
    """Yield the names of specialists whose replicas get no memory of their card, and why, with the remedy."""
    specialists = tuple(specialists)
    sums = shares_by_card(specialists)
    last_on = {card_of(each): each.name for each in specialists if each.memory_fraction}
    for each in specialists:
        card = card_of(each)
        if card is None or each.memory_fraction is None:
            continue
        if each.memory_fraction <= 0:
            why = f"the other replicas on {card} leave nothing of {USUAL_SHARE:g}: lower theirs, or set one here"
            yield each.name, f"is missing: {why}"
        elif sums[card] > 1 + _ROUNDING and each.name == last_on[card]:
            why = f"the replicas on {card} take {sums[card]:g} of its memory together, and at most 1 is allowed"
            yield each.name, f"is too much: {why}"
