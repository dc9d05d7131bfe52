"""Octet with many adapters at once: how they share an engine that computes with one stack a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.peers.model_files import write_adapter
from bench.peers.serve import Prompts, Stopwatch
from kvpool import BlockPool
from octet.identity import Lane
from specialist.adapters.catalog import AdapterCatalog
from specialist.engines.base import Engine
from specialist.scheduling.scheduler import Scheduler, StepLoop
from specialist.scheduling.sequence import Request
from specialist.scheduling.step import Emitted, Finished, Step


@dataclass(slots=True)
class Waits:
    left: dict[str, int]  # unfinished sequences by adapter
    longest: int = 0
    num_turns: int = 0
    num_steps: int = 0
    _waited: dict[str, int] = field(default_factory=dict)
    _last: str = ""

    def step(self, adapter: str) -> None:
        self.num_steps += 1
        self.num_turns += adapter != self._last
        self._last = adapter
        for each, left in self.left.items():
            self._waited[each] = 0 if each == adapter or not left else self._waited.get(each, 0) + 1
        self.longest = max(self.longest, *self._waited.values())


class AdapterMix:
    """Creates a scheduler for each mix over the same engine."""

    def __init__(
        self, scheduler: Scheduler, engine: Engine, adapters: AdapterCatalog, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._scheduler, self._engine = scheduler, engine
        self._adapters, self._shapes = adapters, shapes
        self._digests: list[str] = []
        self._names = count()

    def mix(self, prompts: Prompts, new_tokens: int, num_adapters: int, age_bound: int | None) -> dict[str, Any]:
        """Prompts go to the adapters in turn. `age_bound` None is the default of a replica; 1 is a turn per step."""
        self._load(num_adapters)
        scheduler = self._fresh(age_bound)
        loop = StepLoop(scheduler, self._engine)
        stopwatch = Stopwatch(len(prompts))
        owners = [self._digests[i % num_adapters] for i in range(len(prompts))]
        prompt_of = self._submit(scheduler, prompts, new_tokens, owners)
        waits = Waits({digest: owners.count(digest) for digest in dict.fromkeys(owners)})
        while (step := loop.run_once()) is not None:
            waits.step(_adapter(step))
            self._note(scheduler, prompt_of, owners, waits, stopwatch)
        mixed = {"longest": waits.longest, "turns": waits.num_turns, "steps": waits.num_steps}
        return {**stopwatch.result(), **mixed}

    def _load(self, number: int) -> None:
        with TemporaryDirectory(prefix="octet-bench-") as folder:
            for index in range(len(self._digests), number):
                directory = write_adapter(Path(folder) / str(index), self._shapes, index)
                self._digests.append(self._adapters.load(f"bench-{index}", directory))

    def _fresh(self, age_bound: int | None) -> Scheduler:
        base = self._scheduler
        config = base.config if age_bound is None else replace(base.config, age_bound=age_bound)
        pool = BlockPool(base.pool.capacity + 1, base.pool.block_size, prefix_cache=False)
        return Scheduler(pool, config, base.clock, budget=base.budget)

    def _submit(self, scheduler: Scheduler, prompts: Prompts, new_tokens: int, owners: Sequence[str]) -> dict[str, int]:
        lane = scheduler.config.lane
        prompt_of = {f"mix{next(self._names)}": i for i in range(len(prompts))}
        for name, i in prompt_of.items():
            own = Lane(lane.specialist, lane.revision, (owners[i],))
            scheduler.submit(Request(name, own, tuple(prompts[i]), new_tokens))
        return prompt_of

    def _note(
        self,
        scheduler: Scheduler,
        prompt_of: Mapping[str, int],
        owners: Sequence[str],
        waits: Waits,
        stopwatch: Stopwatch,
    ) -> None:
        for event in scheduler.take_events():
            if isinstance(event, Emitted):
                stopwatch.arrived(prompt_of[event.request_id], event.tokens)
            elif isinstance(event, Finished):
                if event.reason != "length":
                    raise RuntimeError(f"{event.request_id} ended by {event.reason}: {event.detail}")
                waits.left[owners[prompt_of[event.request_id]]] -= 1


def _adapter(step: Step) -> str:
    (digest,) = step.adapters
    return digest
