"""Everything that happens to a simulated ensemble from outside, as data drawn from a seed."""

import json
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Literal

from octet.fault_points import FAULT_POINTS

DeedKind = Literal["kill", "stop", "cut", "cut_there", "cut_back", "slow", "reset", "crawl", "short", "wall", "drift"]
"""Of a machine: killed and started again; stopped and let go on; its way cut in both directions or in one; its way made
slow; its connections reset; its engine made slow; its memory nearly taken. Of the router's wall clock: set. Of a
specialist: its answers are judged wrong."""
CancelHow = Literal["call", "rpc", "leave"]
"""The caller cancels its call; asks for it by another call; its connection is lost."""
REPLICA_DEEDS: tuple[DeedKind, ...] = ("kill", "stop", "cut", "cut_there", "cut_back", "slow", "reset", "crawl")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    number: int
    at: float
    """Seconds after the beginning, as with deeds."""
    text: str
    force: tuple[str, ...] = ()
    """Empty: the text says whom it is for."""
    adapters: tuple[str, ...] = ()
    max_tokens: int = 8
    seed: int = 0
    priority: int = 5
    timeout: float = 10.0
    in_request: bool = False
    """The request says how long; else its call does."""
    first_timeout: float | None = None
    """Seconds to the first token, as the request says."""
    exact: bool = False
    """The answer is as long as it may be."""
    session: str = ""
    salt: str = ""
    cancel_after: float | None = None
    cancel_how: CancelHow = "call"
    pause: float = 0.0
    """Seconds that the caller takes over every event."""

    @property
    def request_id(self) -> str:
        return f"r{self.number}"


@dataclass(frozen=True, slots=True)
class Deed:
    """Something done to the ensemble."""

    at: float
    kind: DeedKind
    target: str
    """The machine's name, or the specialist's."""
    seconds: float = 1.0
    """Until it is undone; what the wall clock is set by."""
    factor: float = 1.0
    """So many times as slow; of memory, the share that is taken."""


@dataclass(frozen=True, slots=True)
class Setup:
    """An ensemble small enough that everything runs out."""

    replicas: dict[str, int]
    calm: bool = False
    """Nothing goes wrong but that there is too much to do, and callers say truly what they want."""
    equal: bool = False
    """All requests are of one priority, so that nobody may give way to anybody."""
    judged: bool = False
    """Answers are short and end by themselves, verdicts and refusals have their consequences within seconds, and there
    is a third specialist, which stands in for the second."""
    floor_first: bool = False
    """Where answers are judged: escalation has no threshold to raise, and begins with the floor."""
    num_blocks: int = 16
    block_size: int = 8
    max_running: int = 4
    max_waiting: int = 6
    failures: int = 3
    max_attempts: int = 3
    cool_down: float = 0.5
    fault_rate: float = 0.0
    """Of the engines' steps."""
    mishaps: dict[str, float] = field(default_factory=dict)
    """Points in production code that may go wrong, and how often."""


@dataclass(frozen=True, slots=True)
class Script:
    seed: int
    """Of everything that is drawn on the way: delays, choices, jitter."""
    setup: Setup
    asks: tuple[Asked, ...]
    deeds: tuple[Deed, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Script":
        """Raises ValueError, TypeError, KeyError for what is none."""
        said: dict[str, Any] = json.loads(text)
        asks = tuple(
            Asked(**{**each, "force": tuple(each["force"]), "adapters": tuple(each["adapters"])})
            for each in said["asks"]
        )
        return cls(said["seed"], Setup(**said["setup"]), asks, tuple(Deed(**each) for each in said["deeds"]))


FIRST, SECOND, THIRD = "algo", "stl", "debug"
"""Each stands in for the one before."""
ADAPTERS = ("left", "right")
EVALUATED_SECONDS = 9.0
"""In which requests come: long enough to be demoted and to come back."""
_WORDS_draw_judged = ("sort", "reverse", "parse", "find", "count")
_POINTS = ("report.stale", "report.lost", "store.away")
_MORE = 0xADA
"""What was added later is drawn apart, so that the rest stays as it was."""
_WITH_ADAPTERS = 0.05
"""Of the requests."""
_FAULTY = 0.1
"""Of the seeds have engines that fail now and then, also below a shadow."""
_STUBBORN = 0.25
"""Of the seeds have a specialist that stays wrong for a while or for good, and so much is asked of it that its shadows
show it once it is demoted."""
_NUM_ASKED_OF_THE_STUBBORN = 24


def draw_judged(seed: int, random: Random) -> Script:
    setup = Setup(
        replicas={FIRST: random.choice((1, 2, 2)), SECOND: 1, THIRD: 1},
        judged=True,
        floor_first=random.random() < 0.4,
        num_blocks=24,
        block_size=4,
        max_running=random.choice((1, 2, 3)),
        max_waiting=random.choice((1, 3, 8)),
        failures=random.choice((1, 2, 3)),
        max_attempts=random.choice((2, 3, 4)),
        cool_down=0.5,
        mishaps={point: 0.05 for point in _POINTS if random.random() < 0.1},
    )
    asks = [_ask_draw_judged(number, random) for number in range(random.randint(36, 42))]
    deeds = _deeds(random, setup)
    more = Random(seed ^ _MORE)
    asks = [replace(ask, adapters=ADAPTERS[:1]) if more.random() < _WITH_ADAPTERS else ask for ask in asks]
    if more.random() < _FAULTY:
        setup = replace(setup, fault_rate=0.03)
    if more.random() < _STUBBORN:
        asks += [_sure(_ask_draw_judged(len(asks) + index, more)) for index in range(_NUM_ASKED_OF_THE_STUBBORN)]
        deeds = [Deed(_early(more), "drift", FIRST, more.choice((3.0, EVALUATED_SECONDS)))]
    return Script(
        seed,
        setup,
        tuple(sorted(asks, key=lambda ask: ask.at)),
        tuple(sorted(deeds, key=lambda deed: deed.at)),
    )


def _sure(ask: Asked) -> Asked:
    """Of whom it is for: the first, or whoever stands in for it."""
    return replace(ask, text=f"{FIRST} 95 {_WORDS_draw_judged[0]} {ask.number}", force=(), cancel_after=None)


def _ask_draw_judged(number: int, random: Random) -> Asked:
    """Most are for the first."""
    name = random.choice((*(FIRST,) * 5, SECOND, SECOND, THIRD))
    words = f"{random.choice(_WORDS_draw_judged)} {number}"
    force: tuple[str, ...] = random.choice((*((),) * 8, (FIRST,), (FIRST,), (FIRST, SECOND)))
    return Asked(
        number=number,
        at=round(_moment_draw_judged(random), 4),
        text=words if force else f"{name} {random.choice((60, 80, 95))} {words}",
        force=force,
        max_tokens=random.randint(6, 10),
        seed=random.randrange(3),
        priority=random.choice((5, 5, 5, 1, 3, 8)),
        timeout=round(random.uniform(1.0, 4.0), 3),
        in_request=random.random() < 0.5,
        cancel_after=round(random.expovariate(20.0), 4) if random.random() < 0.2 else None,
    )


def _moment_draw_judged(random: Random) -> float:
    """Some come together."""
    if random.random() < 0.4:
        return random.randint(1, 4) / 5 * EVALUATED_SECONDS + random.uniform(0, 0.03)
    return random.uniform(0, EVALUATED_SECONDS)


def _deeds(random: Random, setup: Setup) -> list[Deed]:
    """Wrong answers, want of room, or both; and now and then something else."""
    what = random.choice(("drift", "drift", "short", "short", "both"))
    deeds = _drifts(random) if what != "short" else []
    if what != "drift":
        deeds += _shortages(random, setup)
    if random.random() < 0.15:
        machine, kind = f"{random.choice((FIRST, SECOND))}-0", random.choice(REPLICA_DEEDS)
        deeds.append(Deed(_early(random), kind, machine, random.uniform(0.2, 3.0), random.choice((20.0, 100.0))))
    if random.random() < 0.05:
        deeds.append(Deed(_early(random), "wall", "", random.choice((-3600.0, 3600.0))))
    return deeds


def _drifts(random: Random) -> list[Deed]:
    names = random.choice(((FIRST,), (FIRST,), (FIRST,), (SECOND,), (FIRST, SECOND)))
    return [Deed(_early(random), "drift", name, random.choice((1.5, 5.0, 8.0))) for name in names]


def _shortages(random: Random, setup: Setup) -> list[Deed]:
    """Of one of the first's replicas, or of all of them."""
    at, seconds, share = _early(random), random.choice((4.0, 7.5)), random.choice((0.93, *(0.97,) * 5))
    return [Deed(at, "short", f"{FIRST}-{i}", seconds, share) for i in range(random.choice((1, setup.replicas[FIRST])))]


def _early(random: Random) -> float:
    return round(random.uniform(0, EVALUATED_SECONDS / 4), 4)


NAMES = (FIRST, SECOND)
SECONDS = 3.0
"""In which requests come and deeds are done."""
_ACTIVE = 0.25
"""Of the points are armed in a run."""
_CALM = 0.3
"""Of the runs have nothing but load: a rush of requests that know how long they are and want to be in time."""
_JUDGED = 0.12
"""Of the others are about verdicts and what follows from them."""
_OF_VERDICTS = 0xFA44
_RUSH_SECONDS = 1.0
_AGAIN = 0.3
"""Of the requests ask what another asks."""
_HURRIED = 0.2
"""Of the runs have callers who want their first token soon."""
_OF_HURRY = 0x4711
_CANCELS: tuple[CancelHow, ...] = ("call", "rpc", "leave")
_WORDS = ("sort the list", "reverse a string", "parse json", "find a cycle", "count words")


def draw(seed: int) -> Script:
    random = Random(seed)
    calm = random.random() < _CALM
    others = Random(seed ^ _OF_VERDICTS)
    if not calm and others.random() < _JUDGED:
        return draw_judged(seed, others)
    setup = _setup(random, calm=calm)
    ask = _rushing if calm else _ask
    count = random.randint(14, 22) if calm else random.randint(6, 16)
    asks = [ask(number, random, setup) for number in range(count)]
    asks = [_again(ask, random.choice(asks)) if random.random() < _AGAIN else ask for ask in asks]
    deeds = [] if calm else [_deed(random, setup) for _ in range(random.choice((0, 1, 1, 2, 3, 5)))]
    hurry = Random(seed ^ _OF_HURRY)
    if hurry.random() < _HURRIED:
        asks = [_hurried(ask, hurry) for ask in asks]
    return Script(
        seed, setup, tuple(sorted(asks, key=lambda ask: ask.at)), tuple(sorted(deeds, key=lambda deed: deed.at))
    )


def _setup(random: Random, *, calm: bool) -> Setup:
    """Half of the rushes are of equals: those with the most impatient breakers, of which nothing comes in a rush."""
    size = random.choice((4, 4, 8))
    setup = Setup(
        replicas={FIRST: 1 if calm else random.randint(1, 3), SECOND: 1 if calm else random.randint(1, 2)},
        calm=calm,
        num_blocks=random.choice((72, 96, 128, 256)) // size,
        block_size=size,
        max_running=random.randint(2, 5),
        max_waiting=random.choice((1, 2, 3, 8)),
        failures=random.choice((1, 1, 2, 3)),
        max_attempts=random.choice((2, 3, 4)),
        cool_down=random.choice((0.3, 0.5, 1.0)),
        fault_rate=0.0 if calm else random.choice((0.0, 0.03, 0.25)),
        mishaps={} if calm else _mishaps(random),
    )
    return replace(setup, equal=calm and setup.failures == 1)


def _mishaps(random: Random) -> dict[str, float]:
    """Some of the points, each as often as the seed says; what ends a whole replica, seldom."""
    armed = [point for point in FAULT_POINTS if random.random() < _ACTIVE]
    return {point: 0.002 if point == "step.dies" else random.choice((0.02, 0.1, 0.25)) for point in armed}


def _rushing(number: int, random: Random, setup: Setup) -> Asked:
    """Equals without adapters: so everybody is in everybody's way."""
    ask = _ask(number, random, setup)
    priorities = (5,) if setup.equal else (5, 5, 5, 5, 1, 9)
    return replace(
        ask,
        at=round(random.uniform(0, _RUSH_SECONDS), 4),
        adapters=() if setup.equal else ask.adapters,
        priority=random.choice(priorities),
        timeout=round(random.uniform(0.2, 1.6), 3),
        exact=True,
        cancel_after=None,
        pause=0.0,
    )


def _ask(number: int, random: Random, setup: Setup) -> Asked:
    force: tuple[str, ...] = random.choice(((), (FIRST,), (FIRST,), (SECOND,), (FIRST, SECOND)))
    words = random.choice(_WORDS) + " " + "x" * random.choice((0, 0, 3, 10, 30))
    routed = f"{random.choice(NAMES)} {random.choice((30, 60, 95))} {words}"
    slots = setup.num_blocks * setup.block_size
    most = max(1, min(14, slots - len(routed) - 8))
    cancels = random.random() < 0.25
    return Asked(
        number=number,
        at=round(_moment(random), 4),
        text=words if force else routed,
        force=force,
        adapters=random.choice(((), (), (), *((each,) for each in ADAPTERS), ADAPTERS)),
        max_tokens=random.randint(1, most),
        seed=random.randrange(3),
        priority=random.choice((5, 5, 5, 1, 8, 9)),
        timeout=round(random.choice((random.uniform(0.2, 1.5), random.uniform(1.0, 4.0), 12.0)), 3),
        in_request=random.random() < 0.5,
        exact=random.random() < 0.5,
        session=random.choice(("", "", "one", "two")),
        salt=random.choice(("", "", "tenant")),
        cancel_after=round(random.expovariate(6.0), 4) if cancels else None,
        cancel_how=(random.choice(_CANCELS), "rpc")[number % 2],
        pause=random.choice((0.0, 0.0, 0.0, 0.0, 0.05)),
    )


def _again(ask: Asked, other: Asked) -> Asked:
    """The same question as another's."""
    return replace(ask, text=other.text, force=other.force, adapters=other.adapters, salt=other.salt)


def _hurried(ask: Asked, random: Random) -> Asked:
    """With time for the whole, as a rule."""
    first = round(random.uniform(0.05, 1.0) * ask.timeout, 3)
    return replace(ask, first_timeout=first, timeout=random.choice((1, 3, 10)) * ask.timeout)


def _moment(random: Random) -> float:
    """Some come together: a third of them at one of two times."""
    if random.random() < 0.35:
        return random.choice((0.4, 0.8)) * SECONDS + random.uniform(0, 0.03)
    return random.uniform(0, SECONDS)


def _deed(random: Random, setup: Setup) -> Deed:
    at = round(random.uniform(0, SECONDS), 4)
    roll = random.random()
    if roll < 0.08:
        return Deed(at, "wall", "", random.choice((-3600.0, 3600.0, 86_400.0)))
    if roll < 0.2:
        return Deed(at, "drift", random.choice(NAMES), random.uniform(1.0, 6.0))
    machines = [f"{name}-{index}" for name, count in setup.replicas.items() for index in range(count)]
    return Deed(
        at,
        random.choice(REPLICA_DEEDS),
        random.choice(machines),
        round(random.choice((0.1, 0.8, 2.5, 6.0)) * random.uniform(0.5, 1.5), 3),
        random.choice((20.0, 100.0, 400.0)),
    )
