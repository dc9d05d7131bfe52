"""The engines under test."""

from collections.abc import Iterable

from octet.clock import Clock
from specialist.engines.sim.engine import SimEngine
from specialist.server.replica import create_sim_replica
from specialist.server.settings import ReplicaSettings
from tests.conformance.native import hybrid_in_cpp, hybrid_in_torch, in_cpp, in_torch
from tests.conformance.shape import EngineUnderTest, Factory, Shape, reshaped
from tests.specialist.server.harness import QUICK


def sim(shape: Shape, clock: Clock) -> EngineUnderTest:
    settings = ReplicaSettings(
        name="writer", engine="sim", num_blocks=shape.num_blocks, block_size=shape.block_size, context=512
    )
    replica = reshaped(create_sim_replica(settings, clock, QUICK), shape)
    engine = replica.engine
    if not isinstance(engine, SimEngine):
        raise TypeError(f"not a sim engine: {engine!r}")

    def poison(block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            engine.memory.poison(block_id)

    return EngineUnderTest(
        replica, poison, ((), ("a" * 64,), ("a" * 64, "b" * 64)), vocab_size=90, tells_logprobs=False
    )


FACTORIES: dict[str, Factory] = {
    "sim": sim,
    "native-torch": in_torch,
    "native-cpp": in_cpp,
    "hybrid-torch": hybrid_in_torch,
    "hybrid-cpp": hybrid_in_cpp,
}
