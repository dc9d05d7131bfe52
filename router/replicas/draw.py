"""Power of k choices without a look at everybody: some are drawn, and only those are looked at.

Who is drawn and cannot be chosen is replaced by another draw, so that the choice is the same as among those who can:
with sound replicas a request costs as much among a thousand as among four.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TypeAlias

from octet.config.ensemble import DispatchConfig
from router.replicas.pick import Candidate, affinity, cheapest
from router.replicas.replica import Replica

Look: TypeAlias = Callable[[Replica], Candidate | None]
"""A replica as it is now; None where it is not to be chosen."""


def draw(
    replicas: Mapping[str, Replica],
    look: Look,
    session: bytes,
    adapters: Sequence[str],
    dispatch: DispatchConfig,
    random: Random,
    last: str | None = None,
) -> Candidate | None:
    """`last` is who answered the conversation before. None where nobody can be chosen."""
    everybody = tuple(replicas.values())
    order = shuffled(everybody, random)
    drawn = _some(order, look, dispatch.choices)
    if not drawn:
        return None
    wanted = frozenset(adapters)
    if wanted and not any(wanted <= each.adapters for each in drawn):
        drawn += _some((each for each in order if _holds(each, wanted)), look, 1)
    home = _home(replicas, everybody, look, session, last) if session and len(everybody) > 1 else None
    if home is not None:
        drawn = [each for each in drawn if each.name != home.name] + [home]
    return cheapest(drawn, home, wanted, dispatch)


def shuffled(everybody: Sequence[Replica], random: Random) -> Iterator[Replica]:
    """All of them in random order: as many steps as are taken, however many there are."""
    moved: dict[int, int] = {}
    for place in range(len(everybody)):
        other = place + int(random.random() * (len(everybody) - place))
        found = moved.get(other, other)
        moved[other] = moved.get(place, place)
        yield everybody[found]


def _some(order: Iterator[Replica], look: Look, most: int) -> list[Candidate]:
    found: list[Candidate] = []
    for replica in order:
        candidate = look(replica)
        if candidate is not None:
            found.append(candidate)
            if len(found) == most:
                break
    return found


def _holds(replica: Replica, wanted: frozenset[str]) -> bool:
    return replica.load is not None and wanted <= replica.load.adapters


def _home(
    replicas: Mapping[str, Replica], everybody: Sequence[Replica], look: Look, session: bytes, last: str | None
) -> Candidate | None:
    """Whoever holds the conversation's beginning, as far as is known; else where every router would send it."""
    known = replicas.get(last) if last is not None else None
    found = look(known) if known is not None else None
    if found is not None:
        return found
    own = affinity(session)
    found = look(max(everybody, key=own))
    if found is not None:
        return found
    return next(iter(_some(iter(sorted(everybody, key=own, reverse=True)[1:]), look, 1)), None)
