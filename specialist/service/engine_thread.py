"""The thread that owns scheduler and engine. Nobody else touches them."""

import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import NamedTuple

from octet.clock import Clock
from octet.mishap import mishap, words_of
from octet.rpc.refusal import Refusal, engine_failed, invalid, prompt_too_long, replica_failed
from specialist.account import Account, Accounts
from specialist.errors import NeverFits, Refused
from specialist.events import Admitted, Emitted, Event, Finished, Preempted
from specialist.loop import StepLoop
from specialist.request import FinishReason
from specialist.service.answer import Piece
from specialist.service.job import Job, News, Sink, Verdict
from specialist.service.live import Live
from specialist.service.load import Load, load_of
from specialist.service.meter import Meter
from specialist.service.tally import EngineTally
from specialist.step import Step

_log = logging.getLogger(__name__)


class End(NamedTuple):
    request_id: str
    reason: FinishReason


class Aside(NamedTuple):
    request_id: str
    beneficiary: str


class Back(NamedTuple):
    request_id: str


class Handover(NamedTuple):
    """Everything a step has to tell, in one piece."""

    news: list[tuple[Sink, News]]
    load: Load | None
    """When it is worth telling."""
    account: Account | None = None
    """For the desk's books."""
    died: bool = False


Command = Job | End | Aside | Back


class EngineThread:
    """Steps while there is work and sleeps while there is none. Commands take effect between two steps."""

    LOAD_SECONDS = 0.05
    """While busy, load is told no more often than this."""
    STUCK_SECONDS = 0.01
    """How soon to look again when requests are live and yet there is nothing to run."""

    def __init__(self, loop: StepLoop, clock: Clock, hand_over: Callable[[Handover], None]) -> None:
        """`hand_over` is called on this thread: once a step, and once for the verdicts before it."""
        self._loop = loop
        self._scheduler = loop.scheduler
        self._clock = clock
        self._hand_over = hand_over
        self._meter = Meter(clock)
        self.tally = EngineTally()
        """For anybody to read."""
        self._accounts = Accounts(loop.scheduler)
        self._live: dict[str, Live] = {}
        self._news: list[tuple[Sink, News]] = []
        self._load_told_at = -self.LOAD_SECONDS
        self._inbox: deque[Command] = deque()
        self._wake = Condition()
        self._stopping = False
        self._dead = False
        self.stepping_since: float | None = None
        """When the step under way began; for anybody to read."""
        self._thread = Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the step under way has ended. What was live stays unanswered."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, job: Job) -> None:
        """The job's sink gets a verdict or a refusal."""
        if not self._post(job):
            self._hand_over(Handover([(job.sink, replica_failed())], None, died=True))

    def end(self, request_id: str, reason: FinishReason) -> None:
        """Harmless when the request has ended before."""
        self._post(End(request_id, reason))

    def set_aside(self, request_id: str, beneficiary: str) -> None:
        self._post(Aside(request_id, beneficiary))

    def call_back(self, request_id: str) -> None:
        self._post(Back(request_id))

    def _post(self, command: Command) -> bool:
        """False when nobody is there to carry it out."""
        with self._wake:
            if not self._dead:
                self._inbox.append(command)
                self._wake.notify()
            return not self._dead

    def _run(self) -> None:
        try:
            busy = True
            while self._obey(wait=not busy):
                busy = self._step()
        except Exception:
            _log.critical("the step loop died", exc_info=True)
            self._die()

    def _obey(self, *, wait: bool) -> bool:
        """Carry out what is in the inbox, waiting for something when asked to. False when it is time to stop."""
        with self._wake:
            if wait and not self._inbox and not self._stopping:
                self._wake.wait(self.STUCK_SECONDS if self._live else None)
            commands, self._inbox = self._inbox, deque()
        for command in commands:
            self._carry_out(command)
        if self._news:  # a verdict does not wait for the step behind it
            self._deliver_news(None)
        return not self._stopping

    def _carry_out(self, command: Command) -> None:
        match command:
            case End():
                self._scheduler.end(command.request_id, command.reason)
            case Aside():
                self._scheduler.set_aside(command.request_id, command.beneficiary)
            case Back():
                self._scheduler.call_back(command.request_id)
            case Job():
                self._submit(command)

    def _step(self) -> bool:
        """Whether there was anything to do."""
        self.stepping_since = self._clock.now()
        try:
            step = self._loop.run_once()
        finally:
            self.stepping_since = None
        self._tell_of(step)
        return step is not None

    def _tell_of(self, step: Step | None) -> None:
        """Everything that has happened up to the end of the step."""
        if mishap("step.dies"):
            raise RuntimeError(words_of("step.dies"))
        events = self._scheduler.take_events()
        if step is None:
            self._meter.idle()
        else:
            num_emitted = sum(len(event.tokens) for event in events if isinstance(event, Emitted))
            seconds = self._clock.now() - step.started_at
            self._meter.step(step, num_emitted, seconds)
            self.tally.stepped(step, num_emitted, seconds)
        ended_at = self._clock.now()
        started_at = ended_at if step is None else step.started_at
        told: list[Event] = []
        while events:
            for event in events:
                self._tell(event, started_at)
            told += events
            events = self._scheduler.take_events()  # a stop string ends its request
        self._deliver(self._accounts.of(step, told, ended_at), idle=step is None)

    def _submit(self, job: Job) -> None:
        refusal = self._refusal(job)
        if refusal is not None:
            job.release()
            self._news.append((job.sink, refusal))
            return
        position = len(self._scheduler.waiting) - 1
        self._live[job.request.request_id] = Live(job, self._clock)
        self._news.append((job.sink, Verdict(position)))

    def _refusal(self, job: Job) -> Refusal | None:
        """None when the request is in line."""
        try:
            self._scheduler.submit(job.request)
        except NeverFits:
            return prompt_too_long(len(job.request.prompt), self._scheduler.pool.num_slots - 1)
        except Refused as refused:
            return invalid(getattr(refused, "field", "request"), "one that this replica can run", str(refused))
        except Exception:
            _log.error("request %s could not be submitted", job.public_id, exc_info=True, extra=_ids(job))
            return engine_failed(job.public_id)
        return None

    def _tell(self, event: Event, started_at: float) -> None:
        """A text that cannot be written costs its own request."""
        live = self._live.get(event.request_id)
        if live is None:
            return
        if isinstance(event, Finished):
            self._finish(live, event)
            return
        try:
            self._follow(live, event, started_at)
        except Exception:
            _log.error("request %s failed", live.job.public_id, exc_info=True, extra=_ids(live.job))
            self._scheduler.end(event.request_id, "error")

    def _follow(self, live: Live, event: Event, started_at: float) -> None:
        if isinstance(event, Admitted):
            live.admit(event, started_at)
            self._meter.admitted(event)
        elif isinstance(event, Preempted):
            live.preempt(started_at)
            self._meter.preempted()
            self.tally.gave_way(event)
        elif isinstance(event, Emitted):
            self._news.append((live.job.sink, live.emit(event)))
            if live.job.answer.stop_string is not None:
                self._scheduler.end(event.request_id, "stop")

    def _finish(self, live: Live, event: Finished) -> None:
        job = live.job
        del self._live[event.request_id]
        self._meter.finished()
        if event.reason == "error":
            _log.error("request %s failed: %s", job.public_id, event.detail, extra=_ids(job))
        rest, event = self._rest(job, event)
        usage = live.finish(event)
        self.tally.ended(usage)
        self._news += [(job.sink, rest), (job.sink, usage)]
        job.release()

    @staticmethod
    def _rest(job: Job, event: Finished) -> tuple[Piece, Finished]:
        """Text that was held back until the end."""
        try:
            return job.answer.finish(), event
        except Exception:
            _log.error("request %s failed at its end", job.public_id, exc_info=True, extra=_ids(job))
            return Piece(""), event._replace(reason="error")

    def _deliver(self, account: Account, *, idle: bool) -> None:
        now = self._clock.now()
        due = idle or now - self._load_told_at >= self.LOAD_SECONDS
        if due:
            self._load_told_at = now
        self._deliver_news(load_of(self._scheduler, self._meter) if due else None, account)

    def _deliver_news(self, load: Load | None, account: Account | None = None) -> None:
        news, self._news = self._news, []
        self._hand_over(Handover(news, load, account))

    def _die(self) -> None:
        """Every live request ends, those in the inbox as well; whoever comes later is refused at once."""
        with self._wake:
            self._dead = True
            unread = [command for command in self._inbox if isinstance(command, Job)]
        jobs = [live.job for live in self._live.values()] + unread
        lost: list[tuple[Sink, News]] = [(job.sink, replica_failed()) for job in jobs]
        self._live.clear()
        self._hand_over(Handover([*self._news, *lost], None, died=True))


def _ids(job: Job) -> dict[str, str]:
    """This thread handles everybody's requests: a line says whose it is."""
    return {"request_id": job.public_id, "trace_id": job.trace_id}
