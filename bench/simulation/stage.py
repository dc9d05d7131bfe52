"""The ensemble that seeds are lived through on: two specialists or three, each standing in for the one before."""

from bench.simulation.draw_judged import ADAPTERS
from bench.simulation.replica import MODEL, ReplicaSpec
from bench.simulation.script import Setup
from bench.simulation.terse import TERSE
from octet.config.ensemble import (
    CorrectnessConfig,
    DispatchConfig,
    Ensemble,
    EscalationConfig,
    IntentConfig,
    ShadowConfig,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
)
from specialist.engines.sim import SimModel

_CONTEXT = 96
_MOST_COOL_DOWN = 4.0
_UNSURE = 0.7
_JUDGED = CorrectnessConfig(window=1.5, breach=0.5, min_samples=2, sample_rate=1.0)
_SHADOWED = ShadowConfig(budget=0.3, max_inflight=2, demoted_rate=1.0, timeout=5.0)


def context_of(setup: Setup) -> int:
    return min(_CONTEXT, setup.num_blocks * setup.block_size)


def model_of(setup: Setup) -> SimModel:
    return TERSE if setup.judged else MODEL


def spec_of(name: str, setup: Setup) -> ReplicaSpec:
    return ReplicaSpec(
        name,
        num_blocks=setup.num_blocks,
        block_size=setup.block_size,
        max_running=setup.max_running,
        max_waiting=setup.max_waiting,
        context=_CONTEXT,
        adapters=ADAPTERS,
        model=model_of(setup),
    )


def ensemble_of(setup: Setup) -> Ensemble:
    names = tuple(setup.replicas)
    return Ensemble(
        specialists=tuple(
            SpecialistConfig(name, fallback=fallback, floor=0.5)
            for name, fallback in zip(names, (*names[1:], None), strict=True)
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
        intents=(IntentConfig("unspecified", shadow_threshold=_UNSURE),) if setup.judged else (),
        correctness=_JUDGED
        if setup.judged
        else CorrectnessConfig(window=3.0, breach=0.5, min_samples=3, sample_rate=0.5),
        shadow=_SHADOWED if setup.judged else ShadowConfig(budget=0.3, timeout=5.0),
        escalation=_escalation_of(setup),
        store=StoreConfig("memory"),
    )


def _escalation_of(setup: Setup) -> EscalationConfig:
    if not setup.judged:
        return EscalationConfig(min_requests=5, sustain=2.0, relax=4.0)
    return EscalationConfig(
        refused=0.2,
        calm=0.1,
        min_requests=2,
        sustain=1.1,
        relax=1.0,
        threshold_step=0.2,
        max_threshold=_UNSURE if setup.floor_first else 0.9,
        floor_step=4,
        max_floor=6,
    )
