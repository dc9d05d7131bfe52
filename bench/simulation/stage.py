"""The ensemble that seeds are lived through on: two specialists, one of which stands in for the other."""

from bench.simulation.draw import ADAPTERS, FIRST, NAMES, SECOND
from bench.simulation.replica import ReplicaSpec
from bench.simulation.script import Setup
from octet.config.ensemble import (
    CorrectnessConfig,
    DispatchConfig,
    Ensemble,
    EscalationConfig,
    ShadowConfig,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
)

_CONTEXT = 96
_MOST_COOL_DOWN = 4.0


def context_of(setup: Setup) -> int:
    return min(_CONTEXT, setup.num_blocks * setup.block_size)


def spec_of(name: str, setup: Setup) -> ReplicaSpec:
    return ReplicaSpec(
        name,
        num_blocks=setup.num_blocks,
        block_size=setup.block_size,
        max_running=setup.max_running,
        max_waiting=setup.max_waiting,
        context=_CONTEXT,
        adapters=ADAPTERS,
    )


def ensemble_of(setup: Setup) -> Ensemble:
    return Ensemble(
        specialists=tuple(
            SpecialistConfig(name, fallback=SECOND if name == FIRST else None, floor=0.5) for name in NAMES
        ),
        tasks=(TaskConfig("default", temperature=0.0, max_tokens=16, top_p=1.0, repetition_penalty=1.0),),
        dispatch=DispatchConfig(
            failures=setup.failures,
            max_attempts=setup.max_attempts,
            cool_down=setup.cool_down,
            max_cool_down=_MOST_COOL_DOWN,
            stall_seconds=8.0,
            heartbeat_seconds=0.4,
        ),
        correctness=CorrectnessConfig(window=3.0, breach=0.5, min_samples=3, sample_rate=0.5),
        shadow=ShadowConfig(budget=0.3, timeout=5.0),
        escalation=EscalationConfig(min_requests=5, sustain=2.0, relax=4.0),
        store=StoreConfig("memory"),
    )
