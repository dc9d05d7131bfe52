"""What goes on beside the requests and outlives them: judging, shadows, breakers, knobs, lanes, and their store."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from random import Random
from typing import Any

from octet.clock import Clock, wall_ms
from octet.config.ensemble import Ensemble
from octet.identity import digest_of
from octet.store import ComparisonRow, Store, open_store
from octet.v1 import operator_pb2 as wire
from router.after.aftermath import Aftermath
from router.after.rules import rules_of
from router.after.verifiers import open_verifiers
from router.control.control import Control
from router.control.fleet_replicas import FleetReplicas
from router.operator.archive import StoreArchive
from router.operator.service import OperatorService
from router.replicas.fleet import Fleet
from router.shadow.counts import shadow_counts
from router.shadow.shadows import Shadows
from router.trace.tracing import Tracing
from router.verify.verdict import Outcome, Verifier

_DIGITS = 8


class Backstage:
    """Created and used on a running event loop."""

    def __init__(
        self,
        ensemble: Ensemble,
        fleet: Fleet,
        clock: Clock,
        random: Random,
        credentials: Any,
        tracing: Tracing | None = None,
    ) -> None:
        """Raises ValueError for what must be put right first."""
        base = None if ensemble.source is None else ensemble.source.parent
        longest = max(ensemble.correctness.window, ensemble.escalation.sustain)
        self.store = open_store(ensemble.store, _memory_of(ensemble), base, window=longest)
        self.control = Control(ensemble, self.store, FleetReplicas(fleet), clock=clock)
        self._ensemble = ensemble
        self._verifiers = open_verifiers(ensemble)
        rules = rules_of(ensemble, self._verifiers)
        judged, landed = (None, None) if tracing is None else (tracing.judged, tracing.landed)
        self.aftermath = Aftermath(_Outcomes(self.control, self.store), wall_ms, rules, told=judged)
        self.shadows = Shadows(fleet.lanes, random, credentials, ensemble.shadow, ensemble.correctness, told=landed)

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        """By specialist, as they are now."""
        return self._verifiers

    def operator(self) -> OperatorService:
        counts = partial(shadow_counts, self.shadows, self.aftermath)
        return OperatorService(self.control, StoreArchive(self.store), counts, wall_ms)

    async def start(self) -> None:
        await self.control.start()
        self.aftermath.start()

    async def reload(self, ensemble: Ensemble) -> None:
        """Raises ValueError for a verifier that cannot be had; then nothing has changed."""
        replaced: Iterable[Verifier] = ()
        if _judging(ensemble) != _judging(self._ensemble):  # a compiler is tried when it is opened, which takes a while
            verifiers = await asyncio.to_thread(open_verifiers, ensemble)
            replaced, self._verifiers = {*self._verifiers.values()}, verifiers
        self._ensemble = ensemble
        self.aftermath.apply(rules_of(ensemble, self._verifiers))
        self.shadows.apply(ensemble.shadow, ensemble.correctness)
        self.control.reload(ensemble)
        for verifier in replaced:
            await verifier.close()

    async def close(self) -> None:
        """What is held is written; nothing more is judged or sent."""
        await self.shadows.close()
        await self.aftermath.close()
        await self.control.close()


class _Outcomes:
    """Where the aftermath tells what it found."""

    def __init__(self, control: Control, store: Store) -> None:
        self._control = control
        self._store = store

    def judged(self, lane_id: str, specialist: str, outcome: Outcome) -> None:
        self._control.judged(lane_id, outcome)

    def compared(self, comparison: wire.Comparison) -> None:
        raw = comparison.SerializeToString()
        self._store.keep_comparison(ComparisonRow(comparison.at_unix_ms, comparison.request_id, raw))


def _judging(ensemble: Ensemble) -> object:
    """What verifiers are opened by."""
    return ensemble.correctness, [(each.name, each.verify) for each in ensemble.specialists]


def _memory_of(ensemble: Ensemble) -> str:
    """What a database belongs to. At home, two files that give no name, or the same, are two ensembles; a database that
    is named may be shared by routers that read copies of the file."""
    if ensemble.source is None or ensemble.store.url:
        return ensemble.name
    return f"{ensemble.name}-{digest_of([str(ensemble.source.resolve()).encode()]).hex()[:_DIGITS]}"
