"""A script from a seed whose answers are judged: specialists become wrong and right again, and run out of room."""

from dataclasses import replace
from random import Random

from bench.simulation.script import REPLICA_DEEDS, Asked, Deed, Script, Setup

FIRST, SECOND, THIRD = "algo", "stl", "debug"
"""Each stands in for the one before."""
ADAPTERS = ("left", "right")
SECONDS = 9.0
"""In which requests come: long enough to be demoted and to come back."""
_WORDS = ("sort", "reverse", "parse", "find", "count")
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
    asks = [_ask(number, random) for number in range(random.randint(36, 42))]
    deeds = _deeds(random, setup)
    more = Random(seed ^ _MORE)
    asks = [replace(ask, adapters=ADAPTERS[:1]) if more.random() < _WITH_ADAPTERS else ask for ask in asks]
    if more.random() < _FAULTY:
        setup = replace(setup, fault_rate=0.03)
    if more.random() < _STUBBORN:
        asks += [_sure(_ask(len(asks) + index, more)) for index in range(_NUM_ASKED_OF_THE_STUBBORN)]
        deeds = [Deed(_early(more), "drift", FIRST, more.choice((3.0, SECONDS)))]
    return Script(
        seed,
        setup,
        tuple(sorted(asks, key=lambda ask: ask.at)),
        tuple(sorted(deeds, key=lambda deed: deed.at)),
    )


def _sure(ask: Asked) -> Asked:
    """Of whom it is for: the first, or whoever stands in for it."""
    return replace(ask, text=f"{FIRST} 95 {_WORDS[0]} {ask.number}", force=(), cancel_after=None)


def _ask(number: int, random: Random) -> Asked:
    """Most are for the first."""
    name = random.choice((*(FIRST,) * 5, SECOND, SECOND, THIRD))
    words = f"{random.choice(_WORDS)} {number}"
    force: tuple[str, ...] = random.choice((*((),) * 8, (FIRST,), (FIRST,), (FIRST, SECOND)))
    return Asked(
        number=number,
        at=round(_moment(random), 4),
        text=words if force else f"{name} {random.choice((60, 80, 95))} {words}",
        force=force,
        max_tokens=random.randint(6, 10),
        seed=random.randrange(3),
        priority=random.choice((5, 5, 5, 1, 3, 8)),
        timeout=round(random.uniform(1.0, 4.0), 3),
        in_request=random.random() < 0.5,
        cancel_after=round(random.expovariate(20.0), 4) if random.random() < 0.2 else None,
    )


def _moment(random: Random) -> float:
    """Some come together."""
    if random.random() < 0.4:
        return random.randint(1, 4) / 5 * SECONDS + random.uniform(0, 0.03)
    return random.uniform(0, SECONDS)


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
    return round(random.uniform(0, SECONDS / 4), 4)
