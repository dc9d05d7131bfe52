"""What goes on beside the requests and outlives them: judging, shadows, breakers, knobs, lanes, and their store."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from octet.clock import Clock
from octet.config.ensemble import Ensemble
from octet.identity import digest_of
from octet.store import ComparisonRow, Store, Verdict, open_store
from octet.v1 import inference_pb2
from octet.v1 import operator_pb2 as wire
from router.after.aftermath import Aftermath
from router.after.rules import rules_of
from router.after.verifiers import open_verifiers
from router.background import for_good
from router.control.control import Control
from router.control.fleet_replicas import FleetReplicas
from router.metrics.judging import JudgingTally
from router.operator.archive import StoreArchive
from router.operator.desk import Desk
from router.operator.library import FindReceipt, StoreLibrary
from router.operator.service import OperatorService
from router.receipts.kept_as import kept_as
from router.replicas.channel import Connect, connect
from router.replicas.fleet import Fleet
from router.service.labels import labels_in
from router.shadow.counts import shadow_counts
from router.shadow.shadows import Shadows
from router.slo.sharing import Sharing
from router.slo.slos import Slos
from router.trace.tracing import Tracing
from router.verify.verdict import Outcome, Verifier
from router.view.agreement import Agreement
from router.view.view import View

_DIGITS = 8
_WRITER_BYTES = 16
_LAST_SECONDS = 1.0
"""For what was measured since it was last written."""


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
        *,
        store: Store | None = None,
        wall: Callable[[], float] = time.time,
        dial: Connect = connect,
    ) -> None:
        """`wall` tells Unix seconds. The store is the ensemble's, unless one is given. Raises ValueError for what must
        be put right first."""

        def wall_ms() -> int:
            return int(wall() * 1000)

        self._wall_ms = wall_ms
        self.store = _store_of(ensemble) if store is None else store
        self.store.label_of = labels_in
        self.control = Control(ensemble, self.store, FleetReplicas(fleet), wall=wall, clock=clock)
        self.slos = Slos(ensemble, self.control.breakers, clock, wall)
        self._sharing = Sharing(self.slos, self.store.slices, secrets.token_hex(_WRITER_BYTES), wall)
        self._share: asyncio.Task[None] | None = None
        self._ensemble = ensemble
        self._verifiers = open_verifiers(ensemble)
        rules = rules_of(ensemble, self._verifiers)
        judged, landed = (None, None) if tracing is None else (tracing.judged, tracing.landed)
        self.agreement = Agreement(wall_ms)
        self.judging = JudgingTally()
        outcomes = _Outcomes(self.control, self.store, self.slos, self.agreement, self.judging)
        self.aftermath = Aftermath(outcomes, wall_ms, rules, clock=clock.now, told=judged)
        self.shadows = Shadows(
            fleet.lanes,
            random,
            credentials,
            ensemble.shadow,
            ensemble.correctness,
            told=landed,
            clock=clock.now,
            dial=dial,
        )

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        """By specialist, as they are now."""
        return self._verifiers

    @property
    def archive(self) -> StoreArchive:
        return StoreArchive(self.store)

    def shadow_counts(self) -> wire.ShadowCounts:
        return shadow_counts(self.shadows, self.aftermath)

    def desk(self, find_receipt: FindReceipt) -> Desk:
        """What operators do and look up, through whichever door."""
        return Desk(self.control, StoreLibrary(self.store, find_receipt, self._fallback_of), self.slos)

    def _fallback_of(self, specialist: str) -> str:
        return next((each.fallback or "" for each in self._ensemble.specialists if each.name == specialist), "")

    def operator(self, desk: Desk, view: View) -> OperatorService:
        return OperatorService(desk, self.archive, self.shadow_counts, self._wall_ms, view=view)

    async def start(self) -> None:
        await self.control.start()
        self._share = for_good(self._sharing.run, "sharing what was measured")
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
        self.slos.reload(ensemble)
        for verifier in replaced:
            await verifier.close()

    async def close(self) -> None:
        """What is held is written; nothing more is judged or sent."""
        await self.shadows.close()
        await self.aftermath.close()
        await self._stop_sharing()
        await self.control.close()

    async def _stop_sharing(self) -> None:
        """What the next router wants to know is written, unless the store takes long."""
        if self._share is None:
            return
        self._share.cancel()
        await asyncio.gather(self._share, return_exceptions=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS):
                await self._sharing.exchange()


class _Outcomes:
    """Where the aftermath tells what it found."""

    def __init__(self, control: Control, store: Store, slos: Slos, agreement: Agreement, judging: JudgingTally) -> None:
        self._control = control
        self._store = store
        self._slos = slos
        self._agreement = agreement
        self._judging = judging

    def judged(self, lane_id: str, specialist: str, outcome: Outcome) -> None:
        self._control.judged(lane_id, outcome)
        self._judging.judge(specialist, outcome)
        standing = self._control.standing.specialists.get(specialist)
        if standing is not None and lane_id == standing.lane.lane_id and outcome in ("passed", "failed"):
            self._slos.judged(specialist, passed=outcome == "passed")

    def looked_at(self, receipt: inference_pb2.Receipt, outcome: Outcome) -> None:
        name = kept_as(receipt.request_id, receipt.tenant)
        self._store.keep_verdict(Verdict(name, receipt.created_unix_ms, outcome))

    def compared(self, comparison: wire.Comparison, tenant: str) -> None:
        self._judging.compare(comparison)
        raw = comparison.SerializeToString()
        name = kept_as(comparison.request_id, tenant)
        self._store.keep_comparison(ComparisonRow(comparison.at_unix_ms, name, raw))
        self._agreement.add(comparison)


def _judging(ensemble: Ensemble) -> object:
    """What verifiers are opened by."""
    return ensemble.correctness, [(each.name, each.verify) for each in ensemble.specialists]


def _store_of(ensemble: Ensemble) -> Store:
    base = None if ensemble.source is None else ensemble.source.parent
    longest = max(ensemble.correctness.window, ensemble.escalation.sustain)
    return open_store(ensemble.store, _memory_of(ensemble), base, window=longest)


def _memory_of(ensemble: Ensemble) -> str:
    """What a database belongs to. At home, two files that give no name, or the same, are two ensembles; a database that
    is named may be shared by routers that read copies of the file."""
    if ensemble.source is None or ensemble.store.url:
        return ensemble.name
    return f"{ensemble.name}-{digest_of([str(ensemble.source.resolve()).encode()]).hex()[:_DIGITS]}"
