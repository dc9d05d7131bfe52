"""A draft model for the sim engine: it mostly agrees with the model, and can fail. Also the laws that it keeps."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvpool import BlockPool
from octet.clock import Clock
from octet.identity import Lane
from specialist.engines.sim.engine import (
    CostModel,
    FaultSource,
    PoisonedRead,
    SimEngine,
    SimModel,
    lane_number,
    no_faults,
)
from specialist.scheduling.draft_model import DraftModel
from specialist.scheduling.sequence import Sequence
from tests.laws.scenario import BARE
from tests.simulation.laws.scheduler import require


@dataclass(frozen=True, slots=True)
class SmallModel(SimModel):
    """Says the same as the model, but for one token in `errs`."""

    errs: int = 4

    def sample(self, context: int, state: int, seed: int, position: int, allowed: bytes | None = None) -> int:
        drawn = SimModel.sample(self, context, state, seed, position, allowed)
        if context % self.errs:
            return drawn
        if allowed is not None:
            return SimModel.sample(self, context, state, seed + 1, position, allowed)
        return (drawn + 1) % self.vocab_size


def small_model(
    model: SimModel,
    clock: Clock,
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_step_tokens: int = 64,
    errs: int = 4,
    cost: CostModel | None = None,
    faults: FaultSource = no_faults,
    lane: Lane = BARE,
    prefix_cache: bool = True,
    context: int = 1 << 20,
) -> DraftModel:
    """Return a draft model that agrees with `model` on requests without adapters."""
    cost = cost or CostModel(1e-4, 1e-5, 0.0, 1e-4, 1e-5, 0.0)
    engine = SimEngine(
        SmallModel(model.vocab_size, errs=errs),
        cost,
        clock,
        num_blocks=num_blocks,
        block_size=block_size,
        faults=faults,
    )
    pool = BlockPool(num_blocks, block_size, prefix_cache=prefix_cache)
    return DraftModel(engine, pool, lane, clock, max_step_tokens, context)


def check_followers(draft: DraftModel, live: Iterable[Sequence]) -> None:
    """Check that the draft model follows live sequences only, and that its memory has what they say."""
    draft.pool.check()
    require(set(draft.sequences) <= set(live), "a draft model forgets what has ended")
    engine = draft._engine
    assert isinstance(engine, SimEngine)
    for seq, follower in draft._followers.items():
        lane, sums = lane_number(draft._lane), 0
        stop = min(follower.num_computed, follower.num_known)
        for position, token in enumerate(seq.chain.tokens(0, stop)):
            sums += engine.model.cell(lane, sums, token, position)
        try:
            found = engine.memory.context(follower.table, stop)
        except PoisonedRead:
            found = None
        require(found == sums, "a draft model remembers what was said, and no wrong guesses", seq)
