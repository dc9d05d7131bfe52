"""Which replica gets the next request: power of k choices on what is known of their load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Protocol

from admission.ejection import standing
from octet.config.ensemble import DispatchConfig


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as it looks at this moment."""

    name: str
    depth: int
    """Requests it has, as far as is known."""
    max_running: int
    preempting: bool = False
    adapters: frozenset[str] = frozenset()
    """Names of those in its memory."""
    has_room: bool = True
    """A request would get a seat at once, as far as is known."""
    is_closed: bool = False
    """It takes nothing new: draining, or not warm yet."""
    is_broken: bool = False
    """It cannot be reached, or its breaker would not let a request through."""


def pick(
    candidates: Sequence[Candidate],
    session: bytes,
    adapters: Sequence[str],
    dispatch: DispatchConfig,
    random: Random,
    last: str | None = None,
) -> Candidate:
    """`last` is who answered the conversation before. Raises ValueError where there are no candidates; left out are
    never all of them."""
    if not candidates:
        raise ValueError("nobody to pick from")
    able = standing(candidates, is_closed=lambda each: each.is_closed, is_broken=lambda each: each.is_broken)
    if len(able) == 1:
        return able[0]
    home = _home(session, last, able)
    wanted = frozenset(adapters)
    return cheapest(_draw(able, home, wanted, dispatch.choices, random), home, wanted, dispatch)


def cheapest(
    drawn: Sequence[Candidate], home: Candidate | None, wanted: frozenset[str], dispatch: DispatchConfig
) -> Candidate:
    """The first of equals."""
    if len(drawn) == 1:
        return drawn[0]
    return min(drawn, key=lambda each: _cost(each, each is home, wanted, dispatch))


def _home(session: bytes, last: str | None, able: Sequence[Candidate]) -> Candidate | None:
    """Whoever holds its beginning, as far as is known; else where every router would send it."""
    if not session:
        return None
    return next((each for each in able if each.name == last), None) or home_of(session, able)


def home_of(session: bytes, candidates: Sequence[Candidate]) -> Candidate:
    """By rendezvous hashing: every router finds the same one without asking, and it moves only when it is lost."""
    return max(candidates, key=affinity(session))


def _draw(
    able: Sequence[Candidate], home: Candidate | None, wanted: frozenset[str], choices: int, random: Random
) -> list[Candidate]:
    """In random order, so that equals share; those with a bonus are always among them."""
    drawn = random.sample(able, min(choices, len(able)))
    if wanted:
        holders = [each for each in able if wanted <= each.adapters]
        if holders and not any(wanted <= each.adapters for each in drawn):
            drawn.append(random.choice(holders))
    if home is not None and home not in drawn:
        drawn.append(home)
    return drawn


def _cost(candidate: Candidate, is_home: bool, wanted: frozenset[str], dispatch: DispatchConfig) -> float:
    """In shares of a full batch."""
    cost = candidate.depth / max(1, candidate.max_running)
    if candidate.preempting:
        cost += dispatch.preempting_penalty
    if is_home:
        cost -= dispatch.session_bonus
    if wanted and wanted <= candidate.adapters:
        cost -= dispatch.adapter_bonus
    return cost


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def affinity(session: bytes) -> Callable[[_Named], bytes]:
    """How much a replica is a conversation's own: the same on every router."""
    key = blake2b(session, digest_size=32).digest()
    return lambda each: blake2b(each.name.encode(), key=key, digest_size=8).digest()
