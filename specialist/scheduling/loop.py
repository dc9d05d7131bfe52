"""The core that every replica runs: the step loop with its reports to the admission controller."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import NamedTuple, Protocol

from admission.forecast.bookings import AdmissionDecision, Admit, Booking, ReplicaCapacity
from admission.forecast.controller import AdmissionController
from admission.forecast.estimates import Estimator, StepInFlight, StepPace, StepPrices, StepShape
from admission.forecast.places import Places
from admission.forecast.sweep import SWEEP_SECONDS
from admission.policy import PrefillHold
from kvpool import TokenChain, chain_root
from specialist.engines.base import Engine
from specialist.engines.sim.engine import CostModel, cost_model_from_json
from specialist.scheduling.scheduler import Scheduler, StepLoop, turn_stack
from specialist.scheduling.sequence import FinishReason, Request
from specialist.scheduling.step import Admitted, Emitted, Event, Finished, PlainRows, Preempted, Step


class CommittedStep(NamedTuple):
    shape: StepShape
    seconds: float  # since the end of the previous step, or since its own start after a pause
    keys: tuple[str, ...]
    prompts_left: tuple[tuple[str, int], ...]  # prompt tokens that remain to be computed, by request
    pace: StepPace


class SchedulerReport(NamedTuple):
    """Events and, if any, the committed step: written by the engine's thread, applied by the controller's thread."""

    at: float
    step: CommittedStep | None
    events: tuple[Event, ...]

    @property
    def has_only_tokens(self) -> bool:
        """Whether it is a decode step that only added tokens to answers."""
        step = self.step
        if step is None or step.shape.prefill or step.prompts_left:
            return False
        return {*map(type, self.events)} <= {Emitted}

    def apply(self, controller: AdmissionController) -> None:
        """Report the changes in the order in which they happened."""
        emitted = [event for event in self.events if isinstance(event, Emitted)]
        others = self.events if len(emitted) < len(self.events) else ()
        for event in others:
            match event:
                case Admitted():
                    controller.report_started(event.request_id, event.num_tokens, event.num_hit_tokens)
                case Preempted():
                    controller.report_preempted(event.request_id)
        if self.step is not None and self.step.shape.prefill:
            controller.report_turn(self.step.keys)
        for event in emitted:
            controller.report_tokens(event.request_id, len(event.tokens), self.at)
        if self.step is not None:
            for key, num_left in self.step.prompts_left:
                controller.report_prompt_left(key, num_left)
            kept = [len(event.tokens) for event in emitted]
            step, mean = self.step, sum(kept) / len(kept) if kept else None
            self._report_step(controller, step, mean)
        for event in others:
            if isinstance(event, Finished):
                whole = event.reason in ("stop", "length")
                controller.report_ended(event.request_id, whole=whole, cut=event.reason != "stop", now=self.at)

    def _report_step(self, controller: AdmissionController, step: CommittedStep, kept: float | None) -> None:
        controller.report_step(step.shape, step.seconds, len(step.keys), step.pace, self.at, kept)

    def tally(self, controller: AdmissionController, tokens: dict[str, int]) -> None:
        """Report the step. Its tokens are only added to `tokens`: the number of tokens by request."""
        before = sum(tokens.values())
        for event in self.events:
            if isinstance(event, Emitted):
                key = event.request_id
                tokens[key] = tokens.get(key, 0) + len(event.tokens)
        if self.step is not None:
            num_tokens = sum(tokens.values()) - before
            self._report_step(controller, self.step, num_tokens / len(self.events) if self.events else None)


def apply_reports(reports: Iterable[SchedulerReport], controller: AdmissionController) -> None:
    """Report the changes in the order in which they happened. Tokens of successive decode steps, which are never the
    first of their answers, are reported together: what they change is not read in between."""
    tokens: dict[str, int] = {}
    at = 0.0

    def report_tokens() -> None:
        for key, num_tokens in tokens.items():
            controller.report_tokens(key, num_tokens, at)
        tokens.clear()

    for report in reports:
        if report.has_only_tokens:
            at = report.at
            report.tally(controller, tokens)
        else:
            report_tokens()
            report.apply(controller)
    report_tokens()


class StepReporter:
    """Builds the scheduler's reports. Used only by the thread that takes the steps."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ended_at: float | None = None
        self._adapters: tuple[str, ...] = ()

    def report(self, step: Step | None, events: Tokens[Event], now: float) -> SchedulerReport:
        """Return a report of the events and of the committed step. `step` is None if there was nothing to run."""
        committed = None if step is None else self._committed(step, now)
        self._ended_at = None if step is None else now
        return SchedulerReport(now, committed, tuple(events))

    def _committed(self, step: Step, now: float) -> CommittedStep:
        since = step.started_at if self._ended_at is None else self._ended_at
        shape = step_shape(step, switched=step.adapters != self._adapters)
        self._adapters = step.adapters
        keys = tuple([seq.request.request_id for seq in step.sequences])
        chunks = () if isinstance(step.rows, PlainRows) else step.rows
        prompts_left = tuple(
            (row.sequence.request.request_id, row.sequence.remaining) for row in chunks if not row.num_samples
        )
        return CommittedStep(shape, now - since, keys, prompts_left, step_pace(self._scheduler))


def step_pace(scheduler: Scheduler) -> StepPace:
    """Return the scheduler's chunk size and a copy of its hold, for use on another thread."""
    hold = scheduler.hold
    copied = None if hold is None else PrefillHold(hold.chunk_seconds, hold.round_seconds)
    return StepPace(scheduler.budget.tokens(), copied)


def step_shape(step: Step, *, switched: bool) -> StepShape:
    return StepShape(step.mode == "prefill", step.num_tokens, step.num_pairs, switched)


def step_in_flight(scheduler: Scheduler) -> StepInFlight | None:
    """Return the step in flight, if there is one. Only reads, so any thread may call it."""
    step = scheduler.in_flight
    if step is None:
        return None
    prefill = step.mode == "prefill"
    tokens = {row.sequence.request.request_id: len(row.tokens) if prefill else 1 for row in step.rows}
    return StepInFlight(step_shape(step, switched=False), step.started_at, tokens)


class PrefixHits(NamedTuple):
    """Prompt tokens found in the prefix cache."""

    found: int = 0  # all of them
    shared: int = 0  # those in blocks that another sequence holds; all other blocks count as free until they are used
    holder: str = ""  # the request that holds the last of these blocks


_NO_HITS = PrefixHits()


def peek_prefix_hits(scheduler: Scheduler, request: Request) -> PrefixHits:
    """Return the hits that the request would have if it were admitted now. Only reads, so any thread may call it; the
    result may be one step old."""
    if request.hidden_sum is not None:
        return _NO_HITS
    pool = scheduler.pool
    root = chain_root(request.lane, request.tenant_salt, scheduler.config.kv_dtype, pool.block_size)
    chain = TokenChain(root, pool.block_size, request.prompt)
    plan = pool.admit(chain, len(chain), resumable=scheduler.states.resumable(request))
    held = [(i, block.block_id) for i, block in enumerate(plan.hit) if block.ref_count > 0]
    holder = _find_holder(scheduler, *held[-1]) if held else ""
    return PrefixHits(plan.num_hit_tokens, len(held) * pool.block_size, holder)


def _find_holder(scheduler: Scheduler, index: int, block_id: int) -> str:
    """Return the id of a running request whose table has this block at `index`; empty if none has it any more."""
    for seq in scheduler.running.copy():
        table = seq.table  # read once: the engine's thread may release it meanwhile
        if table is not None and block_id in table.block_ids[index : index + 1]:
            return seq.request.request_id
    return ""


def make_booking(
    request: Request,
    *,
    shadow: bool = False,
    exact: bool | None = None,
    hits: PrefixHits = _NO_HITS,
    caller: str = "",
    owner: str = "",
    waits: float | None = None,
    place: str = "",
    mixes_adapters: bool = False,
) -> Booking:
    """Return a request's booking. `exact` states that nothing can end the answer before `max_tokens`; by default, this
    is so if the request has no `stop_ids`. `caller` is the same for all attempts of one request. See Booking for the
    others."""
    return Booking(
        key=request.request_id,
        priority=request.priority,
        arrival=request.arrival,
        deadline=request.deadline,
        first_deadline=request.first_deadline,
        prompt_tokens=len(request.prompt),
        hit_tokens=hits.found,
        shared_tokens=hits.shared,
        holder=hits.holder,
        max_tokens=request.max_tokens,
        exact=not request.stop_ids if exact is None else exact,
        shadow=shadow,
        adapters=turn_stack(request, mixes_adapters=mixes_adapters),
        draft_window=request.draft_window,
        caller=caller,
        owner=owner,
        waits=waits,
        place=place,
    )


def prices_from_cost_model(cost: CostModel) -> StepPrices:
    prefill = cost.prefill_step, cost.prefill_token, cost.prefill_pair
    return StepPrices(*prefill, cost.decode_step, cost.decode_token, cost.decode_pair, cost.adapter_switch)


def load_calibrated_prices(file: Path | None) -> StepPrices | None:
    """Return the prices in a calibration file, or None if `file` is None. Raises CalibrationInvalid or OSError."""
    return None if file is None else prices_from_cost_model(cost_model_from_json(file.read_text()))


SHADOW_PRIORITY = -(2**62)  # below every priority that a caller can ask for


def new_admission_controller(
    scheduler: Scheduler,
    max_waiting: int,
    prices: StepPrices | None,
    jitter: Callable[[], float] = lambda: 0.0,
    places: Places | None = None,
) -> AdmissionController:
    config, pool = scheduler.config, scheduler.pool
    capacity = ReplicaCapacity(
        max_running=config.max_running,
        max_waiting=max_waiting,
        num_blocks=pool.capacity,
        block_size=pool.block_size,
        headroom=ceil(config.watermark * pool.capacity),
        max_step_tokens=config.max_step_tokens,
        age_bound=config.age_bound,
    )
    return AdmissionController(capacity, Estimator(prices), step_pace(scheduler), jitter=jitter, places=places)


class RequestControl(Protocol):
    """Ends, suspends and resumes requests. Implemented by Scheduler, and by EngineThread, which calls the scheduler."""

    def end(self, request_id: str, reason: FinishReason) -> object: ...

    def suspend(self, request_id: str, beneficiary: str) -> object: ...

    def resume(self, request_id: str) -> object: ...


class AdmissionGate:
    """Applies the decisions of the admission controller: displaced requests are shed or suspended."""

    def __init__(self, controller: AdmissionController, scheduler: Scheduler, control: RequestControl) -> None:
        """`scheduler` is only read; requests are ended, suspended and resumed through `control`."""
        self.controller = controller
        self._scheduler = scheduler
        self._control = control
        self._swept_at = scheduler.clock.now()

    def decide(self, booking: Booking, now: float) -> AdmissionDecision:
        """Decide on a request. If it is admitted, book it and make room for it."""
        self.controller.in_flight = step_in_flight(self._scheduler)
        decision = self.controller.decide(booking, now)
        if isinstance(decision, Admit):
            self.controller.book(booking, decision, now)
            for key in decision.displaced:
                self._control.end(key, "shed")
            for key in decision.suspended:
                self._control.suspend(key, booking.key)
        return decision

    def sweep(self) -> None:
        """If a sweep is due, shed requests that can no longer meet their deadlines; suspend and resume others."""
        now = self._scheduler.clock.now()
        if now - self._swept_at < SWEEP_SECONDS and not self.controller.is_sweep_due:
            return
        self._swept_at = now
        self.controller.in_flight = step_in_flight(self._scheduler)
        sweep = self.controller.sweep(now)
        for key in sweep.shed:
            self._control.end(key, "shed")
        for key in sweep.suspended:
            self._control.suspend(key, sweep.beneficiary)
        for key in sweep.resumed:
            self._control.resume(key)


class ReplicaCore:
    """The deterministic part of a replica: admission control, scheduler and step loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        *,
        max_waiting: int = 256,
        prices: StepPrices | None = None,
        jitter: Callable[[], float] = lambda: 0.0,
        places: Places | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.clock = scheduler.clock
        self.controller = new_admission_controller(scheduler, max_waiting, prices, jitter, places)
        self._loop = StepLoop(scheduler, engine)
        self._reporter = StepReporter(scheduler)
        self._gate = AdmissionGate(self.controller, scheduler, scheduler)
        self._events: list[Event] = []

    def submit(
        self, request: Request, *, shadow: bool = False, owner: str = "", waits: float | None = None, place: str = ""
    ) -> AdmissionDecision:
        """Decide on a request and schedule it if admitted. A refused request of an `owner` that waits `waits` seconds
        may get a place, which the owner's next attempt takes by its key (`place`). Raises RequestRefused if it could
        never run here."""
        if shadow:
            request = replace(request, priority=SHADOW_PRIORITY)
        self.scheduler.check(request)
        hits = peek_prefix_hits(self.scheduler, request)
        mixes = self.scheduler.config.mixes_adapters
        booking = make_booking(
            request, shadow=shadow, hits=hits, owner=owner, waits=waits, place=place, mixes_adapters=mixes
        )
        decision = self._gate.decide(booking, self.clock.now())
        if isinstance(decision, Admit):
            self.scheduler.submit(request)
            self._report_events()
        return decision

    def step(self) -> Step | None:
        """Sweep if a sweep is due, then take one step. Return None if there is nothing to run."""
        step = self._sweep_and_step()
        if step is None and self.controller.is_sweep_due:  # those that are left were suspended for a request that ended
            step = self._sweep_and_step()
        return step

    def _sweep_and_step(self) -> Step | None:
        self._gate.sweep()
        self._report_events()
        step = self._loop.run_once()
        self._reporter.report(step, self._take_scheduler_events(), self.clock.now()).apply(self.controller)
        return step

    def end(self, request_id: str, reason: FinishReason) -> bool:
        ended = self.scheduler.end(request_id, reason)
        self._report_events()
        return ended

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _report_events(self) -> None:
        """Report new events to the controller, but not through `_reporter`: it would record a pause between steps."""
        SchedulerReport(self.clock.now(), None, tuple(self._take_scheduler_events())).apply(self.controller)

    def _take_scheduler_events(self) -> list[Event]:
        events = self.scheduler.take_events()
        self._events += events
        return events
