"""A script from a seed."""

from dataclasses import replace
from random import Random

from bench.simulation.draw_judged import ADAPTERS, FIRST, SECOND, draw_judged
from bench.simulation.script import REPLICA_DEEDS, Asked, CancelHow, Deed, Script, Setup
from octet.mishap import POINTS

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
    armed = [point for point in POINTS if random.random() < _ACTIVE]
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
