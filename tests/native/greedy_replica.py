"""A whole replica around a decoder. It always takes the most likely token, and records the logits."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kvpool import BlockPool
from octet.clock import ManualClock
from octet.identity import Lane
from specialist.adapters.adapter import Adapter
from specialist.engines.base import Completion
from specialist.engines.native.engine import build_batch
from specialist.engines.native.host_blocks import host_cache
from specialist.engines.native.recurrent_state import RecurrentState
from specialist.engines.native.torch_decoder import TorchDecoder
from specialist.scheduling.ledger import Hybrid, PureAttention
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import (
    Admitted,
    Emitted,
    Event,
    Finished,
    FixedBudget,
    Proposer,
    Rollback,
    Step,
    StepOutcome,
)

BARE = Lane("tiny", "0" * 64)


class GreedyEngine:
    def __init__(
        self, decoder: TorchDecoder, adapter: Callable[[str], Adapter], mixes: Callable[[str], Adapter] | None
    ) -> None:
        self.decoder = decoder
        self.adapter = adapter
        self.mixes = mixes
        self.logits: dict[str, list[Tensor]] = {}

    def run(self, step: Step) -> Iterable[Completion]:
        batch = build_batch(step, self.decoder.block_size)
        if self.mixes is not None:
            own = [tuple(map(self.mixes, row.sequence.request.lane.adapters)) for row in step.rows]
            logits = self.decoder.forward_mixed(batch, own)  # type: ignore[attr-defined]
        else:
            logits = self.decoder.forward(batch, [self.adapter(digest) for digest in step.adapters])
        best = iter(zip(logits.argmax(-1).tolist(), logits, strict=True))
        sampled = []
        for row in step.rows:
            drawn = [next(best) for _ in range(row.num_samples)]
            self.logits.setdefault(row.sequence.request.request_id, []).extend(of.clone() for _, of in drawn)
            sampled.append(tuple(token for token, _ in drawn))
        return [Completion(step, StepOutcome(tuple(sampled)))]

    def discard(self, rollbacks: Iterable[Rollback]) -> None:
        for table, start, stop in rollbacks:
            self.decoder.zero(list(table.slots(start, stop)))


def _no_adapter(digest: str) -> Adapter:
    raise LookupError(digest)


class GreedyReplica:
    def __init__(
        self,
        decoder: TorchDecoder,
        *,
        adapter: Callable[[str], Adapter] = _no_adapter,
        chunk: int = 16,
        max_running: int = 8,
        prefix_cache: bool = True,
        proposer: Proposer | None = None,
        mixes_adapters: Callable[[str], Adapter] | None = None,
        snapshot_bytes: int = 1 << 20,
        spill_bytes: int = 0,
        num_blocks: int = 0,
    ) -> None:
        """`mixes_adapters`: where a decoder for the GPU gets adapters, of which a step may have several. `num_blocks`:
        of the pool, if it has fewer than the decoder."""
        host = host_cache(decoder, spill_bytes)
        self.pool = BlockPool(
            num_blocks or decoder.num_blocks, decoder.block_size, prefix_cache=prefix_cache, host=host
        )
        self.engine = GreedyEngine(decoder, adapter, mixes_adapters)
        mixes = mixes_adapters is not None
        config = SchedulerConfig(BARE, max_running=max_running, max_step_tokens=chunk, mixes_adapters=mixes)
        self.states = (
            Hybrid(self.pool, partial(RecurrentState, decoder), snapshot_bytes)
            if decoder.layout.places
            else PureAttention(self.pool)
        )
        clock, budget = ManualClock(), FixedBudget(chunk)
        self.scheduler = Scheduler(self.pool, config, clock, budget=budget, states=self.states, proposer=proposer)
        self.loop = StepLoop(self.scheduler, self.engine)
        self.events: list[Event] = []

    def run(self, requests: Iterable[Request], each_step: Callable[[], None] = lambda: None) -> None:
        for request in requests:
            self.scheduler.submit(request)
        while self.loop.run_once() is not None:
            each_step()
        self.pool.check()
        self.events += self.scheduler.take_events()
        errors = [event for event in self.events if isinstance(event, Finished) and event.reason == "error"]
        if errors:
            raise RuntimeError(f"{errors[0]}")

    def answer(self, request_id: str) -> tuple[int, ...]:
        said = [event.tokens for event in self.events if isinstance(event, Emitted) and event.request_id == request_id]
        return tuple(token for tokens in said for token in tokens)

    def logits(self, request_id: str) -> Tensor:
        return torch.stack(self.engine.logits[request_id])

    def poison(self) -> None:
        """Write NaN into every slot that holds no computed token of a running sequence."""
        held = {slot for seq in self.scheduler.running for slot in seq.running_table().slots(0, seq.num_computed)}
        for cache in (self.engine.decoder.k_cache, self.engine.decoder.v_cache):
            flat = cache.view(len(cache), -1, *cache.shape[3:])
            flat[:, [slot for slot in range(flat.shape[1]) if slot not in held]] = torch.nan

    def num_hit_tokens(self, request_id: str) -> int:
        admitted = [event for event in self.events if isinstance(event, Admitted) and event.request_id == request_id]
        return admitted[0].num_hit_tokens


def ask(request_id: str, prompt: Iterable[int], max_tokens: int, adapters: tuple[str, ...] = ()) -> Request:
    return Request(request_id, replace(BARE, adapters=adapters), tuple(prompt), max_tokens)
