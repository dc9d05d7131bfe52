"""What goes on beside the requests and outlives them: judging, shadows, breakers, knobs, lanes, and their store."""

import asyncio
from collections.abc import Iterable, Mapping
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
from router.verify.verdict import Outcome, Verifier
from router.view.agreement import Agreement
from router.view.view import View

_DIGITS = 8


class Backstage:
    """Created and used on a running event loop."""

    def __init__(self, ensemble: Ensemble, fleet: Fleet, clock: Clock, random: Random, credentials: Any) -> None:
        """Raises ValueError for what must be put right first."""
        base = None if ensemble.source is None else ensemble.source.parent
        longest = max(ensemble.correctness.window, ensemble.escalation.sustain)
        self.store = open_store(ensemble.store, _memory_of(ensemble), base, window=longest)
        self.control = Control(ensemble, self.store, FleetReplicas(fleet), clock=clock)
        self._ensemble = ensemble
        self._verifiers = open_verifiers(ensemble)
        rules = rules_of(ensemble, self._verifiers)
        self.agreement = Agreement(wall_ms)
        self.aftermath = Aftermath(_Outcomes(self.control, self.store, self.agreement), wall_ms, rules)
        self.shadows = Shadows(fleet.lanes, random, credentials, ensemble.shadow, ensemble.correctness)

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        """By specialist, as they are now."""
        return self._verifiers

    @property
    def archive(self) -> StoreArchive:
        return StoreArchive(self.store)

    def shadow_counts(self) -> wire.ShadowCounts:
        return shadow_counts(self.shadows, self.aftermath)

    def operator(self, view: View) -> OperatorService:
        return OperatorService(self.control, self.archive, self.shadow_counts, wall_ms, view=view)

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

    def __init__(self, control: Control, store: Store, agreement: Agreement) -> None:
        self._control = control
        self._store = store
        self._agreement = agreement

    def judged(self, lane_id: str, specialist: str, outcome: Outcome) -> None:
        self._control.judged(lane_id, outcome)

    def compared(self, comparison: wire.Comparison) -> None:
        raw = comparison.SerializeToString()
        self._store.keep_comparison(ComparisonRow(comparison.at_unix_ms, comparison.request_id, raw))
        self._agreement.add(comparison)


def _judging(ensemble: Ensemble) -> object:
    """What verifiers are opened by."""
    return ensemble.correctness, [(each.name, each.verify) for each in ensemble.specialists]


def _memory_of(ensemble: Ensemble) -> str:
    """What a database belongs to. At home, two files that give no name, or the same, are two ensembles; a database that
    is named may be shared by routers that read copies of the file."""
    if ensemble.source is None or ensemble.store.url:
        return ensemble.name
    return f"{ensemble.name}-{digest_of([str(ensemble.source.resolve()).encode()]).hex()[:_DIGITS]}"
