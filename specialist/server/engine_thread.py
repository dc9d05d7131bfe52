"""The thread that owns scheduler and engine. No other thread changes them."""

import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import NamedTuple

from octet.clock import Clock
from octet.fault_points import fault_injected, fault_message
from octet.rpc.refusal import Refusal, engine_failed, invalid_field, prompt_too_long, replica_failed
from specialist.scheduling.loop import SchedulerReport, StepReporter
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import FinishReason, PromptTooLarge, RequestRefused
from specialist.scheduling.step import Admitted, Emitted, Event, Finished, Preempted, Step
from specialist.server.load_report import EngineCounters, LoadSnapshot, StepMeter, measure_load
from specialist.server.served_request import AnswerChunk, Enqueued, RequestUpdate, ServedRequest

_log = logging.getLogger(__name__)


class SchedulerCall(NamedTuple):
    method: Callable[..., bool]
    request_id: str
    arguments: tuple[str, ...] = ()


Command = ServedRequest | SchedulerCall  # a request to submit, or a call about a submitted request


class EngineReport(NamedTuple):
    """All results of one step, or of the commands before it, passed to the event loop together."""

    updates: list[tuple[ServedRequest, RequestUpdate]]
    load: LoadSnapshot | None  # None if it was reported a moment ago
    scheduler: SchedulerReport | None = None  # for the admission controller
    died: bool = False
    is_urgent: bool = True  # False if it has only tokens of answers that have begun, which may wait for others


class EngineThread:
    """Runs steps while there is work and sleeps otherwise. Commands take effect between two steps."""

    LOAD_SECONDS = 0.05  # the shortest time between two load snapshots while busy
    STUCK_SECONDS = 0.01  # seconds until the next try when requests are live but none can run

    deliver: Callable[[EngineReport], object]
    """Must be set before the start. The engine's thread calls it after each step, and before a step if commands had
    results. If that thread is dead, `submit` calls it."""

    def __init__(self, loop: StepLoop, clock: Clock) -> None:
        self.step_loop = loop
        self._scheduler = loop.scheduler
        self._clock = clock
        self._meter = StepMeter(clock)
        self.counters = EngineCounters()
        self._reporter = StepReporter(loop.scheduler)
        self._served: dict[str, ServedRequest] = {}  # requests that the scheduler has and that have not ended
        self._updates: list[tuple[ServedRequest, RequestUpdate]] = []
        self._has_news = False  # whether an update is more than further tokens
        self._load_sent_at = -self.LOAD_SECONDS
        self._inbox: deque[Command] = deque()
        self._wake = Condition()
        self._stopping = False
        self._dead = False
        self.stepping_since: float | None = None  # the start of the current step; any thread may read it
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current step. Live requests stay unanswered."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, served: ServedRequest) -> None:
        """Submit a request. Its stream receives `Enqueued` or a refusal."""
        if not self._post(served):
            self.deliver(EngineReport([(served, replica_failed())], None, died=True))

    def end(self, request_id: str, reason: FinishReason) -> None:
        """End a request, unless it has ended already."""
        self._post(SchedulerCall(self._scheduler.end, request_id, (reason,)))

    def suspend(self, request_id: str, beneficiary: str) -> None:
        self._post(SchedulerCall(self._scheduler.suspend, request_id, (beneficiary,)))

    def resume(self, request_id: str) -> None:
        self._post(SchedulerCall(self._scheduler.resume, request_id))

    def _post(self, command: Command) -> bool:
        """Pass the command to the thread. Return False if the thread is dead."""
        with self._wake:
            if not self._dead:
                self._inbox.append(command)
                self._wake.notify()
            return not self._dead

    def _run(self) -> None:
        try:
            busy = True
            while self._run_commands(wait=not busy):
                busy = self._step()
        except BaseException:
            _log.critical("the step loop died", exc_info=True)
            self._die()

    def _run_commands(self, *, wait: bool) -> bool:
        """Run the commands in the inbox. With `wait` and an empty inbox, first sleep: until a command arrives, or only
        briefly while requests are live. Return False if the thread must stop."""
        with self._wake:
            if wait and not self._inbox and not self._stopping:
                self._wake.wait(self.STUCK_SECONDS if self._served else None)
            num_commands = len(self._inbox)
        for _ in range(num_commands):
            self._run_command(self._inbox[0])
            self._inbox.popleft()  # only now, because `_die` answers the commands that are still in the inbox
        if self._updates:  # the answer to a submission does not wait for the next step
            self._send(None)
        return not self._stopping

    def _run_command(self, command: Command) -> None:
        """Run a command. If it raises, only the command's request fails."""
        if isinstance(command, ServedRequest):
            self._submit(command)
            return
        try:
            command.method(command.request_id, *command.arguments)
        except Exception:
            self._fail_call(command)

    def _fail_call(self, command: SchedulerCall) -> None:
        """End the request of a failed call. If the scheduler cannot end it, its caller gets a refusal."""
        name, served = command.method.__name__, self._served.get(command.request_id)
        if served is None:
            _log.error("the call to %s failed for a request that has ended", name, exc_info=True)
            return
        extra = served.log_fields
        _log.error("the call to %s failed for request %s", name, served.public_id, exc_info=True, extra=extra)
        try:
            self._scheduler.end(command.request_id, "error")
        except Exception:
            del self._served[command.request_id]
            served.release()
            self._updates.append((served, engine_failed(served.public_id)))

    def _submit(self, served: ServedRequest) -> None:
        refusal = self._try_submit(served)
        if refusal is not None:
            served.release()
            self._updates.append((served, refusal))
            return
        self._served[served.request.request_id] = served
        self._updates.append((served, Enqueued(len(self._scheduler.waiting) - 1)))

    def _try_submit(self, served: ServedRequest) -> Refusal | None:
        try:
            self._scheduler.submit(served.request)
        except PromptTooLarge:
            return prompt_too_long(len(served.request.prompt), self._scheduler.pool.num_slots - 1)
        except RequestRefused as refused:
            field, value = getattr(refused, "field", "request"), f"an error: {refused}"
            return invalid_field(field, "acceptable to this replica", value)
        except Exception:
            _log.error("request %s could not be submitted", served.public_id, exc_info=True, extra=served.log_fields)
            return engine_failed(served.public_id)
        return None

    def _step(self) -> bool:
        """Take a step. Return whether there was anything to run."""
        self.stepping_since = self._clock.now()
        try:
            step = self.step_loop.run_once()
        finally:
            self.stepping_since = None
        self._report_step(step)
        return step is not None

    def _report_step(self, step: Step | None) -> None:
        if fault_injected("step.dies"):
            raise RuntimeError(fault_message("step.dies"))
        events = self._scheduler.take_events()
        ended_at = self._clock.now()
        started_at = ended_at
        if step is None:
            self._meter.record_idle()
        else:
            started_at = step.started_at
            num_emitted = sum([len(event.tokens) for event in events if isinstance(event, Emitted)])
            self._meter.record_step(step, num_emitted, ended_at - started_at)
            self.counters.count_step(step, num_emitted, ended_at - started_at)
        handled: list[Event] = []
        while events:
            self._handle_all(events, started_at, ended_at)
            handled += events
            events = self._scheduler.take_events()  # again, because a stop string ends its request
        is_load_due = step is None or ended_at - self._load_sent_at >= self.LOAD_SECONDS
        if is_load_due:
            self._load_sent_at = ended_at
        load = measure_load(self._scheduler, self._meter) if is_load_due else None
        self._send(load, self._reporter.report(step, handled, ended_at))

    def _handle_all(self, events: list[Event], started_at: float, now: float) -> None:
        find, updates = self._served.get, self._updates
        for event in events:
            served = find(event.request_id)
            if served is None:
                continue
            if served.only_counts and isinstance(event, Emitted):
                served.num_emitted += len(event.tokens)
                served.last_token_at = now
                updates.append((served, event))
            else:
                self._handle(served, event, started_at, now)

    def _handle(self, served: ServedRequest, event: Event, started_at: float, now: float) -> None:
        """Handle an event of the request. If that fails, only the request fails."""
        if isinstance(event, Finished):
            self._finish(served, event)
            return
        try:
            if isinstance(event, Emitted):
                self._has_news = self._has_news or not served.has_begun
                update = served.push_tokens(event, now)
                self._updates.append((served, update))
                if update is not event and served.answer.stop_string is not None:
                    self._scheduler.end(event.request_id, "stop")
            elif isinstance(event, Admitted):
                served.record_admission(event, started_at)
                self._meter.record_admission(event)
            elif isinstance(event, Preempted):
                served.record_preemption(started_at)
                self._meter.record_preemption()
                self.counters.preempted[event.cause] += 1
        except Exception:
            _log.error("request %s failed", served.public_id, exc_info=True, extra=served.log_fields)
            self._scheduler.end(event.request_id, "error")

    def _finish(self, served: ServedRequest, event: Finished) -> None:
        del self._served[event.request_id]
        self._meter.record_end(event)
        self.counters.count_drafts(event)
        if event.reason == "error":
            _log.error("request %s failed: %s", served.public_id, event.detail, extra=served.log_fields)
        try:
            rest = served.finish_answer(event)
        except Exception:
            _log.error("request %s failed at its end", served.public_id, exc_info=True, extra=served.log_fields)
            rest, event = AnswerChunk(""), event._replace(reason="error")
        usage = served.usage(event, self._clock.now())
        self.counters.count_end(usage)
        self._updates += [(served, rest), (served, usage)]
        self._has_news = True
        served.release()

    def _send(self, load: LoadSnapshot | None, report: SchedulerReport | None = None) -> None:
        updates, self._updates = self._updates, []
        is_urgent = report is None or load is not None or self._has_news
        self._has_news = False
        self.deliver(EngineReport(updates, load, report, is_urgent=is_urgent))

    def _die(self) -> None:
        """End every live request and every request in the inbox with a refusal. Later requests are refused too."""
        with self._wake:
            self._dead = True
            unread = [command for command in self._inbox if isinstance(command, ServedRequest)]
        lost = dict.fromkeys([*self._served.values(), *unread])
        self._served.clear()
        for served in lost:
            served.release()
            self._updates.append((served, replica_failed()))
        self.deliver(EngineReport(self._updates, None, died=True))
