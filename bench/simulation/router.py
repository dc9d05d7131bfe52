"""The router's process: everything that answers `octet.v1.Inference` but the sockets."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import TypeAlias

from bench.simulation.clock import LoopClock, Wall
from bench.simulation.heap_loop import HeapLoop
from bench.simulation.port import Port
from bench.simulation.store import new_store
from octet.config.ensemble import Ensemble
from octet.rpc.memory_guard import MemoryGuard
from router.background import for_good
from router.decide.decider import Decider, Opinions
from router.decide.policy import Policy
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.live import LiveRequests
from router.dispatch.quarantine import Quarantine
from router.dispatch.sweep import Sweep
from router.dispatch.token_counter import TokenCounter
from router.keys.gate import Gate
from router.observe.observers import Observers
from router.receipts.book import ReceiptBook
from router.reception.reception import Reception
from router.reception.trace import Tracer
from router.replicas.channel import Connect
from router.replicas.fleet import Fleet
from router.service.answering import Answering
from router.service.backstage import Backstage
from router.service.receipts import Receipts
from router.service.service import InferenceService
from router.service.validation import Validations
from router.verify.verdict import Verifier

_ID_BITS = 128
Judges: TypeAlias = Callable[[Ensemble], Mapping[str, Verifier]]
"""Who judges the answers of each specialist."""


class RouterHouse:
    """Built and used in the context of its process, on a running loop."""

    def __init__(
        self,
        ensemble: Ensemble,
        addresses: dict[str, tuple[str, ...]],
        opinions: Opinions,
        loop: HeapLoop,
        wall: Wall,
        random: Random,
        dial: Connect,
        verdicts: Judges,
    ) -> None:
        self.ensemble = ensemble
        self._random = random
        self.clock = clock = LoopClock(loop)
        self.observers = Observers()
        self.fleet = Fleet(ensemble, addresses, clock, random, None, dial)
        self.quarantine = Quarantine(clock, lambda: self.fleet.dispatch.quarantine_seconds)
        self.backstage = Backstage(
            ensemble,
            self.fleet,
            clock,
            random,
            None,
            store=new_store(ensemble, loop, wall),
            wall=wall.now,
            dial=dial,
            blame=self.quarantine.left,
            opened=verdicts,
        )
        self.observers.add(self.backstage.slos)
        config = ensemble.router
        self.live = LiveRequests(config.max_inflight, config.max_inflight_bytes)
        self._validations = Validations(
            lambda: self.backstage.verifiers, ensemble.correctness, config.validations, config.validation_seconds
        )
        book = ReceiptBook(clock, most=config.receipts, seconds=config.receipt_seconds)
        self.gate = Gate(None, clock, wall.now_ms)
        self._tracer = Tracer(random.randbytes, None)
        self.answering = self._answering(opinions)
        self.service = InferenceService(
            Policy(ensemble),
            Reception(clock, self._new_id, self._tracer, default_timeout=config.default_timeout),
            self.answering,
            self.live,
            Receipts(book, self.backstage.store),
            clock,
            wall.now_ms,
            self._validations,
            self.gate,
            self.observers,
            self.backstage.slos.header,
            MemoryGuard(lambda: None, clock),
        )
        self.port = Port()
        self.port.add_generic_rpc_handlers((self.service.handler(),))
        self._sweeping: asyncio.Task[None] | None = None

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(_ID_BITS):032x}"

    def _answering(self, opinions: Opinions) -> Answering:
        clock, random, backstage = self.clock, self._random, self.backstage
        return Answering(
            Decider(opinions),
            backstage.control,
            self.fleet,
            Dispatcher(clock, random, self.quarantine),
            TokenCounter(clock, random),
            backstage.aftermath,
            backstage.shadows,
            self._tracer,
            self.observers,
            clock,
            random.random,
        )

    async def start(self) -> None:
        await self.fleet.start()
        await self.backstage.start()
        sweep = Sweep(self.clock, lambda: self.fleet.dispatch)
        self._sweeping = for_good(lambda: sweep.run(self.live, lambda: self.fleet.replicas), "the sweep")

    async def warm(self, seconds: float) -> None:
        """Returns when every lane is. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while self.fleet.waiting_for:
                self.fleet.changed.clear()
                await self.fleet.changed.wait()

    async def stop(self) -> None:
        """When nobody waits any more."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self._validations.close()
        await self.backstage.close()
        await self.fleet.close()
