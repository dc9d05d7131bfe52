"""Scripts of requests and faults for a simulated ensemble, drawn from a seed."""

import json
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Literal

from octet.fault_points import FAULT_POINTS

ScriptedFaultKind = Literal[
    "kill", "stop", "cut", "cut_there", "cut_back", "slow", "reset", "crawl", "short", "wall", "drift"
]
"""`kill` kills a machine and later restarts it, `stop` pauses it, `cut*` cuts its network in one or both
directions, `slow` delays its network, `reset` resets its connections, `crawl` slows its engine, and `short` takes
nearly all of its memory. `wall` moves the router's wall clock. `drift` makes most of a specialist's answers fail."""
CancelHow = Literal["call", "rpc", "leave"]
"""The caller cancels the gRPC call, calls the Cancel method, or loses its connection."""
REPLICA_FAULTS: tuple[ScriptedFaultKind, ...] = (
    "kill",
    "stop",
    "cut",
    "cut_there",
    "cut_back",
    "slow",
    "reset",
    "crawl",
)


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """A request of a script."""

    number: int
    at: float
    """Seconds after the start."""
    text: str
    force: tuple[str, ...] = ()
    """Forced specialists. If empty, the text names the specialist."""
    adapters: tuple[str, ...] = ()
    max_tokens: int = 8
    seed: int = 0
    priority: int = 5
    timeout: float = 10.0
    in_request: bool = False
    """Whether the request carries the timeout. Otherwise the gRPC call does."""
    first_timeout: float | None = None
    """The request's timeout for its first token."""
    exact: bool = False
    """Whether the answer has exactly `max_tokens` tokens."""
    session: str = ""
    salt: str = ""
    cancel_after: float | None = None
    cancel_how: CancelHow = "call"
    pause: float = 0.0
    """Seconds that the caller takes to read an event."""

    @property
    def request_id(self) -> str:
        return f"r{self.number}"


@dataclass(frozen=True, slots=True)
class ScriptedFault:
    """A fault that is injected from outside a process."""

    at: float
    kind: ScriptedFaultKind
    target: str
    """Name of the machine or the specialist."""
    seconds: float = 1.0
    """Duration in seconds; for `wall`, the size of the jump."""
    factor: float = 1.0
    """Slowdown; for `short`, the share of memory taken."""


@dataclass(frozen=True, slots=True)
class Setup:
    """An ensemble so small that its resources run out."""

    replicas: dict[str, int]
    calm: bool = False
    """Whether there are no faults, only overload. Requests then state their true length."""
    equal: bool = False
    """Whether all requests have the same priority, so that none may be preempted for another."""
    judged: bool = False
    """Whether answers are short, verdicts and refusals take effect within seconds, and a third specialist is the
    fallback of the second."""
    floor_first: bool = False
    """Whether, with `judged`, escalation cannot raise the threshold and so starts with the floor."""
    num_blocks: int = 16
    block_size: int = 8
    max_running: int = 4
    max_waiting: int = 6
    failures: int = 3
    max_attempts: int = 3
    cool_down: float = 0.5
    fault_rate: float = 0.0
    """Share of engine steps that fail."""
    fault_points: dict[str, float] = field(default_factory=dict)
    """Fault points in product code, and the rate at which each fires."""


@dataclass(frozen=True, slots=True)
class Script:
    seed: int
    """Seed of delays, choices and jitter."""
    setup: Setup
    asks: tuple[ScriptedRequest, ...]
    faults: tuple[ScriptedFault, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Script":
        """Parse a script. Raises ValueError, TypeError or KeyError for invalid text."""
        said: dict[str, Any] = json.loads(text)
        asks = tuple(
            ScriptedRequest(**{**each, "force": tuple(each["force"]), "adapters": tuple(each["adapters"])})
            for each in said["asks"]
        )
        return cls(said["seed"], Setup(**said["setup"]), asks, tuple(ScriptedFault(**each) for each in said["faults"]))


FIRST, SECOND, THIRD = "algo", "stl", "debug"
"""The specialists. Each is the fallback of the one before it."""
ADAPTERS = ("left", "right")
EVALUATED_SECONDS = 9.0
"""Requests arrive within this many seconds: long enough for a demotion and a recovery."""
_WORDS_JUDGED = ("sort", "reverse", "parse", "find", "count")
_POINTS = ("report.stale", "report.lost", "store.away")
_MORE = 0xADA
"""Newer draws use a separate random stream, so that the older draws of a seed stay the same."""
_WITH_ADAPTERS = 0.05
"""Share of requests with adapters."""
_FAULTY = 0.1
"""Share of seeds whose engines sometimes fail, also while they serve a shadow."""
_LASTING_DRIFT = 0.25
"""Share of seeds with a specialist that stays wrong, and with enough requests for its shadows to show it."""
_NUM_LASTING_DRIFT_REQUESTS = 24


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
        fault_points={point: 0.05 for point in _POINTS if random.random() < 0.1},
    )
    asks = [_draw_judged_request(number, random) for number in range(random.randint(36, 42))]
    faults = _draw_faults(random, setup)
    more = Random(seed ^ _MORE)
    asks = [replace(ask, adapters=ADAPTERS[:1]) if more.random() < _WITH_ADAPTERS else ask for ask in asks]
    if more.random() < _FAULTY:
        setup = replace(setup, fault_rate=0.03)
    if more.random() < _LASTING_DRIFT:
        asks += [_sure(_draw_judged_request(len(asks) + index, more)) for index in range(_NUM_LASTING_DRIFT_REQUESTS)]
        faults = [ScriptedFault(_early(more), "drift", FIRST, more.choice((3.0, EVALUATED_SECONDS)))]
    return Script(
        seed,
        setup,
        tuple(sorted(asks, key=lambda ask: ask.at)),
        tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _sure(ask: ScriptedRequest) -> ScriptedRequest:
    """Return the request with a prompt for which the classifier gives the first specialist 95 %. It names no specialist
    and is never cancelled."""
    return replace(ask, text=f"{FIRST} 95 {_WORDS_JUDGED[0]} {ask.number}", force=(), cancel_after=None)


def _draw_judged_request(number: int, random: Random) -> ScriptedRequest:
    """Draw a request. The first specialist is the most likely target."""
    name = random.choice((*(FIRST,) * 5, SECOND, SECOND, THIRD))
    words = f"{random.choice(_WORDS_JUDGED)} {number}"
    force: tuple[str, ...] = random.choice((*((),) * 8, (FIRST,), (FIRST,), (FIRST, SECOND)))
    return ScriptedRequest(
        number=number,
        at=round(_draw_judged_time(random), 4),
        text=words if force else f"{name} {random.choice((60, 80, 95))} {words}",
        force=force,
        max_tokens=random.randint(6, 10),
        seed=random.randrange(3),
        priority=random.choice((5, 5, 5, 1, 3, 8)),
        timeout=round(random.uniform(1.0, 4.0), 3),
        in_request=random.random() < 0.5,
        cancel_after=round(random.expovariate(20.0), 4) if random.random() < 0.2 else None,
    )


def _draw_judged_time(random: Random) -> float:
    """Draw an arrival time. Some requests arrive together."""
    if random.random() < 0.4:
        return random.randint(1, 4) / 5 * EVALUATED_SECONDS + random.uniform(0, 0.03)
    return random.uniform(0, EVALUATED_SECONDS)


def _draw_faults(random: Random, setup: Setup) -> list[ScriptedFault]:
    """Draw wrong answers, memory shortage or both, and sometimes another fault."""
    what = random.choice(("drift", "drift", "short", "short", "both"))
    faults = _drifts(random) if what != "short" else []
    if what != "drift":
        faults += _shortages(random, setup)
    if random.random() < 0.15:
        machine, kind = f"{random.choice((FIRST, SECOND))}-0", random.choice(REPLICA_FAULTS)
        faults.append(
            ScriptedFault(_early(random), kind, machine, random.uniform(0.2, 3.0), random.choice((20.0, 100.0)))
        )
    if random.random() < 0.05:
        faults.append(ScriptedFault(_early(random), "wall", "", random.choice((-3600.0, 3600.0))))
    return faults


def _drifts(random: Random) -> list[ScriptedFault]:
    names = random.choice(((FIRST,), (FIRST,), (FIRST,), (SECOND,), (FIRST, SECOND)))
    return [ScriptedFault(_early(random), "drift", name, random.choice((1.5, 5.0, 8.0))) for name in names]


def _shortages(random: Random, setup: Setup) -> list[ScriptedFault]:
    """Draw a memory shortage on one or all replicas of the first specialist."""
    at, seconds, share = _early(random), random.choice((4.0, 7.5)), random.choice((0.93, *(0.97,) * 5))
    return [
        ScriptedFault(at, "short", f"{FIRST}-{i}", seconds, share)
        for i in range(random.choice((1, setup.replicas[FIRST])))
    ]


def _early(random: Random) -> float:
    return round(random.uniform(0, EVALUATED_SECONDS / 4), 4)


NAMES = (FIRST, SECOND)
SECONDS = 3.0
"""Requests and faults occur within this many seconds."""
_ACTIVE = 0.25
"""Share of fault points that are armed."""
_CALM = 0.3
"""Share of seeds with overload only: a burst of requests with known lengths and deadlines."""
_JUDGED = 0.12
"""Share of the other seeds that are about verdicts and their consequences."""
_OF_VERDICTS = 0xFA44
_RUSH_SECONDS = 1.0
_AGAIN = 0.3
"""Share of requests that repeat the prompt of another request."""
_HURRIED = 0.2
"""Share of seeds with first-token deadlines."""
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
    faults = [] if calm else [_fault(random, setup) for _ in range(random.choice((0, 1, 1, 2, 3, 5)))]
    hurry = Random(seed ^ _OF_HURRY)
    if hurry.random() < _HURRIED:
        asks = [_hurried(ask, hurry) for ask in asks]
    return Script(
        seed, setup, tuple(sorted(asks, key=lambda ask: ask.at)), tuple(sorted(faults, key=lambda fault: fault.at))
    )


def _setup(random: Random, *, calm: bool) -> Setup:
    """Draw a setup. About half of the calm setups have equal priorities."""
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
        fault_points={} if calm else _draw_fault_points(random),
    )
    return replace(setup, equal=calm and setup.failures == 1)  # Without faults, `failures` has no other effect.


def _draw_fault_points(random: Random) -> dict[str, float]:
    """Draw fault points and their rates. The fault point that kills a replica fires rarely."""
    armed = [point for point in FAULT_POINTS if random.random() < _ACTIVE]
    return {point: 0.002 if point == "step.dies" else random.choice((0.02, 0.1, 0.25)) for point in armed}


def _rushing(number: int, random: Random, setup: Setup) -> ScriptedRequest:
    """Draw a request of a burst. If the setup has equal priorities, its requests have no adapters, so that all of them
    compete."""
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


def _ask(number: int, random: Random, setup: Setup) -> ScriptedRequest:
    force: tuple[str, ...] = random.choice(((), (FIRST,), (FIRST,), (SECOND,), (FIRST, SECOND)))
    words = random.choice(_WORDS) + " " + "x" * random.choice((0, 0, 3, 10, 30))
    routed = f"{random.choice(NAMES)} {random.choice((30, 60, 95))} {words}"
    slots = setup.num_blocks * setup.block_size
    most = max(1, min(14, slots - len(routed) - 8))
    cancels = random.random() < 0.25
    return ScriptedRequest(
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


def _again(ask: ScriptedRequest, other: ScriptedRequest) -> ScriptedRequest:
    """Return `ask` with the prompt, specialists, adapters and salt of `other`."""
    return replace(ask, text=other.text, force=other.force, adapters=other.adapters, salt=other.salt)


def _hurried(ask: ScriptedRequest, random: Random) -> ScriptedRequest:
    """Return the request with a timeout for its first token, and sometimes a longer timeout for the whole answer."""
    first = round(random.uniform(0.05, 1.0) * ask.timeout, 3)
    return replace(ask, first_timeout=first, timeout=random.choice((1, 3, 10)) * ask.timeout)


def _moment(random: Random) -> float:
    """Draw an arrival time. About a third of the requests arrive at one of two times."""
    if random.random() < 0.35:
        return random.choice((0.4, 0.8)) * SECONDS + random.uniform(0, 0.03)
    return random.uniform(0, SECONDS)


def _fault(random: Random, setup: Setup) -> ScriptedFault:
    at = round(random.uniform(0, SECONDS), 4)
    roll = random.random()
    if roll < 0.08:
        return ScriptedFault(at, "wall", "", random.choice((-3600.0, 3600.0, 86_400.0)))
    if roll < 0.2:
        return ScriptedFault(at, "drift", random.choice(NAMES), random.uniform(1.0, 6.0))
    machines = [f"{name}-{index}" for name, count in setup.replicas.items() for index in range(count)]
    return ScriptedFault(
        at,
        random.choice(REPLICA_FAULTS),
        random.choice(machines),
        round(random.choice((0.1, 0.8, 2.5, 6.0)) * random.uniform(0.5, 1.5), 3),
        random.choice((20.0, 100.0, 400.0)),
    )
