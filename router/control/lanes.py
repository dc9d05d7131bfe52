"""Lanes of every specialist: how they begin, are evaluated, promoted and rolled back."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from admission import lanes as lane_rules
from admission import refresh as refresh_rules
from admission.budgets import Counts
from admission.lanes import BY_CONFIGURATION, BY_POLICY, AdapterRef, LaneOrigin, LaneRecord, LaneUpdate, SpecialistLanes
from octet.config.ensemble import SpecialistConfig
from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from router.control.adapters import AdapterSync, make_load_name
from router.control.audit import AuditWriter, ChangeAuthor, DocumentRevision, audit_row, conflict
from router.control.floors import FloorRegistry
from router.control.replicas import ObservedReplica
from router.control.state import LANES, SharedState, can_serve_lane
from router.control.weights import SupervisedWeights
from router.store.rows import AuditRow, DocumentBody

_log = logging.getLogger(__name__)
GRACE_SECONDS = 3.0  # a lane may be without a replica this long before another lane replaces it; longer than a restart
_NEW_MODEL = "some replicas run another model"
STARTING_SECONDS = 90.0  # how long an operator's call waits for new weights to start
_UNSUPERVISED = (
    "are not started by `octet serve` with the native engine: start a replica of the new weights yourself, "
    "and add its address"
)
_SHARED = (
    "other `octet serve` share the store, and one that cannot start the weights could not serve its callers: "
    "stop them for the refresh"
)
_ONLY_MODEL = "no replica runs the previous model any more"
_WHAT: Mapping[str, str] = {"begin": "begin_lane", "load": "load_lane", "trust": "trust_lane"}
UpdateLanes = Callable[[SpecialistLanes | None], LaneUpdate | None]  # maps the current lanes; None for no change


@dataclass(eq=False)
class LaneRegistry:
    _state: SharedState
    _audit: AuditWriter
    _adapters: AdapterSync
    _weights: SupervisedWeights
    _token: Callable[[], str]  # makes load names unique across routers
    _report: Callable[[AuditRow], None]  # publishes an audit row that records no change
    floors: FloorRegistry
    # By specialist: the last stored lane that this router's configuration has begun. A configuration begins a lane only
    # once: if another router's configuration has replaced it, the new lane stays. Otherwise the two would alternate.
    _made: dict[str, LaneOrigin] = field(default_factory=dict)
    _overruled: set[str] = field(default_factory=set)  # specialists whose lane another router's configuration began
    _gone_since: dict[str, float] = field(default_factory=dict)

    def counts(self, lanes: SpecialistLanes, now: float) -> dict[int, Counts]:
        return {
            number: self._state.tally(
                lanes.specialist, lane_rules.lane_id(lanes.specialist, lanes.lane(number)), now, since
            )
            for number, since in lanes.evidence_from().items()
        }

    async def tick(self, now: float) -> None:
        for specialist in self._state.ensemble.names:
            await self._observe(specialist, now)
            lanes = self._state.lanes(specialist)
            if lanes is not None and self._evaluated(lanes, now) is not None:
                await self._act(specialist, lambda current: None if current is None else self._evaluated(current, now))

    async def begin_new(self, now: float) -> None:
        for specialist in self._state.ensemble.names:
            lanes = self._state.lanes(specialist)
            if lanes is None:
                await self._observe(specialist, now)
            elif self._weights.next_update(lanes, now) is not None:
                await self._act(specialist, lambda current: self._follow_weights(current, now))

    async def load(self, specialist: str, path: str, name: str, author: ChangeAuthor, now: float) -> None:
        """Load a candidate on every reachable replica. Raises Refusal if that fails; then no replica keeps it."""
        self._state.refresh()
        await self._observe(specialist, now)
        load_name = make_load_name(name, self._require_lanes(specialist).next_number, self._token())
        async with self._adapters.installing(specialist, load_name, path) as digest:
            refs = (AdapterRef(name, load_name, digest, path),)
            await self._order(specialist, lambda lanes: lanes.load(refs, author.who, author.why, now))
        await self._adapters.wait_reported(specialist, load_name)

    async def refresh(self, specialist: str, model: str, digest: str, author: ChangeAuthor, now: float) -> bool:
        """Let the supervisor start a replica of these weights, which become the candidate. Return whether they did, or
        False if they are still starting after STARTING_SECONDS. Raises Refusal if they cannot be started."""
        config = self._state.ensemble.specialist(specialist)
        if not self._weights.supervises(specialist):
            raise conflict(f"the replicas of {specialist} {_UNSUPERVISED}", "specialist")
        if not self._state.is_durable:
            raise conflict("store.url is memory, and a refresh must outlive a restart: configure a store", "specialist")

        if others := self._weights.others():
            raise conflict(f"{_SHARED}: {', '.join(others)}", "specialist")
        number = 0

        def order(lanes: SpecialistLanes) -> LaneUpdate:
            nonlocal number
            update = refresh_rules.order_refresh(lanes, config.model, model, digest, author.who, author.why, now)
            number = update[0].refresh.coming
            return update

        await self._order(specialist, order)

        def is_over() -> bool:
            return self._require_lanes(specialist).refresh.coming != number

        if not await self._weights.wait(is_over, STARTING_SECONDS):
            return False
        lanes = self._require_lanes(specialist)
        if lanes.refresh.failure:
            reason, limit = error_pb2.ERROR_REASON_INVALID_FIELD, "weights that can replace the serving ones"
            raise Refusal(reason, f"the weights were refused: {lanes.refresh.failure}", field="model", limit=limit)
        if lanes.refresh.numbered(number) is None:
            raise conflict(f"the refresh of {specialist} was rolled back while the weights started", "specialist")
        return True

    async def promote(self, specialist: str, name: str, author: ChangeAuthor, now: float) -> None:
        def promote(lanes: SpecialistLanes) -> LaneUpdate:
            update = _anchor_origin(lanes.promote(name or None, author.who, author.why, now))
            self._check_is_held(specialist, update[0].serving)
            return update

        await self._order(specialist, promote)

    async def roll_back(self, specialist: str, author: ChangeAuthor, now: float) -> None:
        def roll_back(lanes: SpecialistLanes) -> LaneUpdate:
            previous = lanes.previous
            held = {previous.number} if previous is not None and self._state.holders(specialist, previous) else set()
            update = _anchor_origin(refresh_rules.roll_back(lanes, held, author.who, author.why, now))
            if update[0].serving.number != lanes.serving.number:
                self._check_is_held(specialist, update[0].serving)
            return update

        await self._order(specialist, roll_back)

    def remark(self, specialist: str) -> str:
        lanes = self._state.lanes(specialist)
        if lanes is not None and self._state.is_lost(specialist, lanes.serving):
            return f"{_describe_loss(lanes.serving)}: this lane cannot serve"
        if lanes is not None and (reason := self._weights.failed_here(lanes)) and self._weights.others():
            return f"its weights cannot be started here, and are left to the other `octet serve`: {reason}"
        if specialist in self._overruled:
            return "begun by the configuration of another router, which differs from this router's"
        return ""

    def _require_lanes(self, specialist: str) -> SpecialistLanes:
        lanes = self._state.lanes(specialist)
        if lanes is None:
            raise conflict(f"no replica of {specialist} has reported yet, so the lanes are unknown", "specialist")
        return lanes

    def _check_is_held(self, specialist: str, lane: LaneRecord) -> None:
        if not self._state.holders(specialist, lane):
            raise conflict(f"no replica of {specialist} holds {lane}, so this lane cannot serve", "specialist")

    async def _order(self, specialist: str, update: Callable[[SpecialistLanes], LaneUpdate]) -> None:
        self._state.refresh()
        self._require_lanes(specialist)

        def revise(body: DocumentBody | None) -> DocumentRevision:
            if body is None:
                raise conflict(f"the lanes of {specialist} are no longer known", "specialist")
            try:
                return _revision(update(SpecialistLanes.from_body(body)))
            except lane_rules.LaneError as error:
                raise conflict(str(error)) from None

        await self._audit.order(LANES, specialist, revise)

    async def _act(self, specialist: str, update: UpdateLanes) -> bool:
        def revise(body: DocumentBody | None) -> DocumentRevision | None:
            updated = update(None if body is None else SpecialistLanes.from_body(body))
            return None if updated is None else _revision(updated)

        return await self._audit.act(LANES, specialist, revise)

    async def _observe(self, specialist: str, now: float) -> None:
        """Compare the lanes with what the replicas run. If they differ, begin a lane or offer a candidate."""
        replicas = sorted(self._state.reachable(specialist), key=lambda each: each.name)
        config, lanes = self._state.ensemble.specialist(specialist), self._state.lanes(specialist)
        if not replicas or (lanes is None and self._weights.waits_for_report(specialist)):
            return
        own = configured_origins(replicas, config)
        if lanes is None:
            first = partial(self._begin_lane, None, replicas, now, config)
            await self._begin(specialist, own, lambda current: first() if current is None else None)
            return
        self._claim(lanes, own)
        can_serve = any(self._state.can_serve(each, lanes.serving) for each in replicas)
        if can_serve and is_still_configured(lanes, own):
            self._gone_since.pop(specialist, None)
            self._overruled.discard(specialist)
            if not lanes.refresh.configured and offer_candidate(lanes, replicas, now) is not None:
                await self._act(
                    specialist, lambda current: None if current is None else offer_candidate(current, replicas, now)
                )
        elif self._weights.is_expected(lanes):
            self._gone_since.pop(specialist, None)
        elif now - self._gone_since.setdefault(specialist, now) >= GRACE_SECONDS:
            if self._is_overruled(lanes, own):
                self._report_overruled(lanes, now)
            await self._begin(specialist, own, lambda current: self._replace_lane(current, replicas, now))

    async def _begin(self, specialist: str, own: frozenset[LaneOrigin], update: UpdateLanes) -> None:
        """Update the lanes. If the new lane comes from this router's configuration, remember its origin."""
        made: list[SpecialistLanes] = []

        def note_made(current: SpecialistLanes | None) -> LaneUpdate | None:
            updated = update(current)
            made[:] = [] if updated is None else [updated[0]]
            return updated

        if await self._act(specialist, note_made) and made:
            self._claim(made[0], own)

    def _claim(self, lanes: SpecialistLanes, own: frozenset[LaneOrigin]) -> None:
        if (LANES, lanes.specialist) not in self._state.documents.unsaved and lanes.origin in own:
            self._made[lanes.specialist] = lanes.origin

    def _is_overruled(self, lanes: SpecialistLanes, own: frozenset[LaneOrigin]) -> bool:
        """Return whether another configuration has replaced the lane that this router's configuration began."""
        made = self._made.get(lanes.specialist)
        if made is None:
            return False
        if not is_still_configured(lanes, own):
            return any(each.digests == made.digests for each in own)
        return made in own and lanes.origin not in own and lanes.serving.by == BY_CONFIGURATION

    def _report_overruled(self, lanes: SpecialistLanes, now: float) -> None:
        if lanes.specialist in self._overruled:
            return
        self._overruled.add(lanes.specialist)
        why = "routers that share this store have different configurations: the lane begun last stays in force"
        _log.error("%s: %s; %s does not match this router's configuration", lanes.specialist, why, lanes.serving)
        author = ChangeAuthor(BY_POLICY, why)
        self._report(audit_row(now, author, "other_configuration", lanes.specialist, "", f"{lanes.serving} serving"))

    def _replace_lane(
        self, lanes: SpecialistLanes | None, replicas: Sequence[ObservedReplica], now: float
    ) -> LaneUpdate | None:
        if lanes is None:
            return None
        config = self._state.ensemble.specialist(lanes.specialist)
        if not self._is_overruled(lanes, configured_origins(replicas, config)):
            begun = self._return_from_failed(lanes, now) or self._begin_lane(lanes, replicas, now, config)
            if begun is not None:
                return begun
        if not self._state.ensemble.lanes.roll_back or not self._state.is_lost(lanes.specialist, lanes.serving):
            return None
        update = lanes.give_up(_describe_loss(lanes.serving), now)  # return to the previous lane
        has_holder = update is not None and self._state.holders(lanes.specialist, update[0].serving)
        return _anchor_origin(update) if update is not None and has_holder else None

    def _begin_lane(
        self,
        lanes: SpecialistLanes | None,
        replicas: Sequence[ObservedReplica],
        now: float,
        config: SpecialistConfig,
    ) -> LaneUpdate | None:
        return begin_lane(lanes, replicas, config, now, supervised=self._weights.supervises(config.name))

    def _return_from_failed(self, lanes: SpecialistLanes, now: float) -> LaneUpdate | None:
        """Go back to the previous lane if the weights of the serving one cannot be started and it can serve."""
        reason = self._weights.failed_here(lanes)
        if not reason or lanes.previous is None or not self._state.holders(lanes.specialist, lanes.previous):
            return None
        update = lanes.give_up(f"its weights cannot be started: {reason}", now)
        return None if update is None else _anchor_origin(update)

    def _follow_weights(self, lanes: SpecialistLanes | None, now: float) -> LaneUpdate | None:
        update = None if lanes is None else self._weights.next_update(lanes, now)
        return None if update is None else _anchor_origin(update)

    def _evaluated(self, lanes: SpecialistLanes, now: float) -> LaneUpdate | None:
        floors, collapsed = self.floors.in_force(lanes.specialist), self._collapsed(lanes, now)
        after, move = lanes.judge(self.counts(lanes, now), now, self._state.ensemble.lanes, floors, collapsed)
        if move is None or not self._is_possible(lanes, after):
            return None
        return _anchor_origin((after, move))

    def _collapsed(self, lanes: SpecialistLanes, now: float) -> dict[int, str]:
        """Return, by number, why the serving lane or the candidate has collapsed."""
        watched = [lane for lane in (lanes.serving, lanes.candidate) if lane is not None]
        found = ((lane.number, self._state.find_collapse(lanes, lane, now)) for lane in watched)
        return {number: str(collapse) for number, collapse in found if collapse is not None}

    def _is_possible(self, before: SpecialistLanes, after: SpecialistLanes) -> bool:
        """Return whether `after` can take effect. A new serving lane must be held by at least one replica and, unless
        it is the previous lane, by no fewer replicas than the current lane."""
        if after.serving.number == before.serving.number:
            return True
        holders = len(self._state.holders(before.specialist, after.serving))
        if before.previous is not None and after.serving.number == before.previous.number:
            return holders > 0
        return holders > 0 and holders >= len(self._state.holders(before.specialist, before.serving))


def configured_adapters(replica: ObservedReplica, specialist: SpecialistConfig) -> tuple[AdapterRef, ...] | None:
    if not all(name in replica.adapters for name in specialist.use_adapters):
        return None
    return tuple(AdapterRef(name, name, replica.adapters[name], "") for name in specialist.use_adapters)


def configured_origins(replicas: Sequence[ObservedReplica], specialist: SpecialistConfig) -> frozenset[LaneOrigin]:
    found = ((each, configured_adapters(each, specialist)) for each in replicas)
    return frozenset(
        LaneOrigin(tuple(ref.digest for ref in refs), each.revision) for each, refs in found if refs is not None
    )


def is_still_configured(lanes: SpecialistLanes, own: Iterable[LaneOrigin]) -> bool:
    return any(each.digests == lanes.origin.digests for each in own)


def begin_lane(
    lanes: SpecialistLanes | None,
    replicas: Sequence[ObservedReplica],
    specialist: SpecialistConfig,
    now: float,
    *,
    supervised: bool = False,
) -> LaneUpdate | None:
    """Begin a lane with the model and adapters of a replica, or promote a candidate that all replicas can serve. For
    `supervised` replicas, remember the configured model."""
    if lanes is not None and lanes.candidate is not None:
        is_other = lanes.candidate.revision != lanes.serving.revision
        if is_other and all(can_serve_lane(each, lanes.candidate) for each in replicas):
            return _anchor_origin(lanes.promote(None, BY_POLICY, _ONLY_MODEL, now))
    for each in replicas:
        refs = configured_adapters(each, specialist)
        if refs is not None and each.revision:
            name, model = specialist.name, specialist.model
            if supervised:
                after, move = refresh_rules.begin_configured(lanes, name, refs, each.revision, model, now)
            else:
                after, move = lane_rules.configure_lanes(lanes, name, refs, each.revision, now)
            return None if move is None else (after, move)
    return None


def offer_candidate(lanes: SpecialistLanes, replicas: Sequence[ObservedReplica], now: float) -> LaneUpdate | None:
    """If no candidate exists, offer a model that replicas run and no serving, previous or rolled-back lane has."""
    rejected = {lane.revision for lane in lanes.lanes if lane.status in ("previous", "rolled_back")}
    others = {each.revision for each in replicas if each.revision} - {lanes.serving.revision} - rejected
    if not others or lanes.candidate is not None:
        return None
    return lanes.load(lanes.serving.adapters, BY_POLICY, _NEW_MODEL, now, revision=min(others))


def _anchor_origin(update: LaneUpdate) -> LaneUpdate:
    lanes, move = update
    return replace(lanes, origin=LaneOrigin(lanes.origin.digests, lanes.serving.revision)), move


def _describe_loss(lane: LaneRecord) -> str:
    return f"no replica holds the adapters of {lane} any more, and they cannot be loaded again"


def _revision(update: LaneUpdate) -> DocumentRevision:
    lanes, move = update
    what, author = _WHAT.get(move.what, move.what), ChangeAuthor(move.by, move.why)
    row = audit_row(move.at, author, what, lanes.specialist, move.before, move.after)
    return DocumentRevision(lanes.to_body(), row)
