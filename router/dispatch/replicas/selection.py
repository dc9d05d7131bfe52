"""The choice of a replica: power of k choices on live load, with bonuses for a cached conversation or adapter."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, TypeVar

from admission.breakers import filter_ejected
from octet.clock import Clock
from octet.config.ensemble import DispatchConfig

if TYPE_CHECKING:
    from router.dispatch.replicas.replica import Replica

MAX_SESSIONS = 10_000
SESSION_SECONDS = 3600.0  # longer than a replica with other traffic keeps the blocks of an idle conversation
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """The state of a replica for one selection."""

    name: str
    depth: int  # its known requests; shadows are not counted, because other requests preempt them
    max_running: int
    preempting: bool = False
    adapters: frozenset[str] = frozenset()
    has_capacity: bool = True  # whether a request would probably run immediately
    is_closed: bool = False  # whether it takes no new requests: it is draining or not serving yet
    is_broken: bool = False  # whether it is unreachable or hung, or its breaker is open


class SessionAffinity:
    """Remembers which replica last served each conversation. Forgets entries that are too old or too many."""

    def __init__(self, clock: Clock, max_sessions: int = MAX_SESSIONS, seconds: float = SESSION_SECONDS) -> None:
        if max_sessions < 1:
            raise ValueError(f"max_sessions must be at least 1, got {max_sessions}")
        self._clock = clock
        self._max_sessions = max_sessions
        self._seconds = seconds
        self._replicas: OrderedDict[bytes, tuple[str, float]] = OrderedDict()  # name and time, least recent first

    def learn(self, session: bytes, adapters: Sequence[str], replica: str) -> None:
        """Remember the replica that accepted a request of this conversation: it now holds the conversation's prefix."""
        if not session:
            return
        key = _affinity_key(session, adapters)
        self._replicas[key] = (replica, self._clock.now())
        self._replicas.move_to_end(key)
        if len(self._replicas) > self._max_sessions:
            self._replicas.popitem(last=False)

    def find(self, session: bytes, adapters: Sequence[str]) -> str | None:
        oldest = self._clock.now() - self._seconds
        while self._replicas and next(iter(self._replicas.values()))[1] < oldest:
            self._replicas.popitem(last=False)
        found = self._replicas.get(_affinity_key(session, adapters)) if session else None
        return None if found is None else found[0]


def _affinity_key(session: bytes, adapters: Sequence[str]) -> bytes:
    """Return the key of a conversation. It includes the adapters, because cached blocks belong to one adapter stack."""
    hasher = blake2b(session, digest_size=_KEY_BYTES)
    for name in adapters:
        hasher.update(b"\0" + name.encode())
    return hasher.digest()


_MemberT = TypeVar("_MemberT", "Replica", ReplicaSnapshot)


def sample_replicas(
    members: Sequence[_MemberT],
    inspect: Callable[[_MemberT], ReplicaSnapshot | None],
    session: bytes,
    adapters: Sequence[str],
    dispatch: DispatchConfig,
    random: Random,
    last: _MemberT | None = None,
) -> ReplicaSnapshot | None:
    """Choose the cheapest of a random sample of usable members (power of k choices); None if no member is usable. A
    member is usable if `inspect` returns its snapshot. `last` is the replica that last served the conversation."""

    def usable(order: Iterator[_MemberT]) -> Iterator[ReplicaSnapshot]:
        return (found for found in map(inspect, order) if found is not None)

    order = shuffle_lazily(members, random)
    sampled = list(islice(usable(order), dispatch.choices))
    if not sampled:
        return None
    wanted = frozenset(adapters)
    if wanted and not any(wanted <= each.adapters for each in sampled):
        sampled += islice(usable(each for each in order if wanted <= each.adapters), 1)
    affine = None
    if session and len(members) > 1:
        affine = None if last is None else inspect(last)
        if affine is None:  # rendezvous hashing: the choice changes only when that member is lost
            score = affinity_score(session)
            affine = inspect(max(members, key=score))
            affine = affine or next(usable(iter(sorted(members, key=score, reverse=True)[1:])), None)
    if affine is not None:
        sampled = [each for each in sampled if each.name != affine.name] + [affine]
    if len(sampled) == 1:
        return sampled[0]

    def cost(each: ReplicaSnapshot) -> float:
        """Return the load as a share of a full batch, with penalties and bonuses."""
        cost = each.depth / max(1, each.max_running)
        if each.preempting:
            cost += dispatch.preempting_penalty
        if each is affine:
            cost -= dispatch.session_bonus
        if wanted and wanted <= each.adapters:
            cost -= dispatch.adapter_bonus
        return cost

    return min(sampled, key=cost)


def shuffle_lazily(members: Sequence[_MemberT], random: Random) -> Iterator[_MemberT]:
    """Yield all members in random order; the work is proportional to the number of members taken."""
    moved: dict[int, int] = {}
    for place in range(len(members)):
        other = place + int(random.random() * (len(members) - place))
        found = moved.get(other, other)
        moved[other] = moved.get(place, place)
        yield members[found]


def pick_replica(
    snapshots: Sequence[ReplicaSnapshot],
    session: bytes,
    adapters: Sequence[str],
    dispatch: DispatchConfig,
    random: Random,
    last: str | None = None,
) -> ReplicaSnapshot:
    """Pick a replica by power of k choices from those that `filter_ejected` keeps. Raises ValueError if none is
    left."""
    able = filter_ejected(snapshots, is_closed=lambda each: each.is_closed, is_broken=lambda each: each.is_broken)
    known = next((each for each in able if each.name == last), None)
    chosen = sample_replicas(able, lambda each: each, session, adapters, dispatch, random, known)
    if chosen is None:
        raise ValueError("no replicas to pick from")
    return chosen


def affinity_score(session: bytes) -> Callable[["Replica | ReplicaSnapshot"], bytes]:
    """Return a function that scores replicas for a new conversation. The highest score wins; all routers agree."""
    key = blake2b(session, digest_size=32).digest()
    return lambda each: blake2b(each.name.encode(), key=key, digest_size=8).digest()
