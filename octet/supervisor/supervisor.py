"""The supervisor loop: start processes by stages, restart them, stop them in order."""

import gc
import os
import random
import selectors
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from octet.backoff import BackoffDelays
from octet.clock import Clock, SystemClock
from octet.rpc.memory import MemoryKills
from octet.supervisor.console import Console, NonBlockingWriter
from octet.supervisor.process import EXIT_USAGE, ProcessSpec, SpawnedProcess, SupervisedProcess, format_exit
from octet.supervisor.signals import ControllingTerminal, SignalPipe

EXIT_KILLED, EXIT_INTERRUPTED = 1, 130
_MAX_OPTIONAL_STARTS = 3  # of an optional process that is killed or fails before it is ready


@dataclass(frozen=True, slots=True)
class SupervisorTimeouts:
    """Timeouts in seconds."""

    hang: float = 30.0  # a process that has sent heartbeats is killed after this long without one
    start: float = 300.0
    """A process that is not ready, sends no heartbeats and reports no progress is killed after this long."""
    drain: float = 60.0  # the time that each stage has to stop before its processes are killed
    delays: BackoffDelays = field(default_factory=BackoffDelays)


class Supervisor:
    """Starts, watches and stops processes. Runs on a single thread, so that it can fork at any time."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        console: Console,
        writers: Sequence[NonBlockingWriter],
        timeouts: SupervisorTimeouts | None = None,
        *,
        revise: Callable[["Supervisor"], None] = lambda _: None,
        clock: Clock | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`writers` are all writers that are used while the supervisor runs, including the console's. `revise` is
        called in every turn, at least as often as a process sends a heartbeat; it may add and retire processes."""
        self._console = console
        self._writers = writers
        self._timeouts = timeouts or SupervisorTimeouts()
        self._clock = clock or SystemClock()
        self._revise = revise
        self._trouble = ""  # why `revise` last failed
        self._draw = draw
        self._memory_kills = MemoryKills()
        self.processes = list(map(self._new_process, specs))
        self.failed_starts: dict[str, str] = {}  # why optional processes that were given up never became ready
        self._stages = sorted({spec.stage for spec in specs})
        self._num_stages_started = 0
        self._was_ready = False
        self._is_stopping = False
        self._stopping_stage: int | None = None
        self._kill_at = inf  # when the processes of that stage are killed
        self._had_to_kill = False
        self._exit_status = 0
        self._final_message = ""  # why the supervisor stopped, printed at the very end
        self._signals = SignalPipe()
        self._selector = selectors.DefaultSelector()
        self._terminal = ControllingTerminal()

    def run(self, on_ready: Callable[["Supervisor"], None]) -> int:
        """Run until the shutdown. Return the exit status: 0 after SIGTERM or SIGINT, 1 if a process had to be killed,
        130 after a second SIGINT, 2 if a process exits with status 2 at its first start. `on_ready` is called once,
        when all processes are ready for the first time."""
        gc.collect()
        gc.freeze()  # garbage collection in forked processes leaves shared pages untouched
        with self._signals, self._selector, self._terminal:
            self._selector.register(self._signals.fd, selectors.EVENT_READ)
            try:
                while not self._is_stopping or any(process.is_alive for process in self.processes):
                    self._run_once(on_ready)
            finally:
                self._kill_all()
        if self._final_message:
            self._console.say(self._final_message)
        for writer in self._writers:
            writer.finish()
        return EXIT_KILLED if self._exit_status == 0 and self._had_to_kill else self._exit_status

    @property
    def pids(self) -> list[int]:
        return [process.spawned.pid for process in self.processes if process.spawned is not None]

    def can_add(self, name: str) -> bool:
        return all(process.name != name for process in self.processes)

    def add(self, spec: ProcessSpec) -> None:
        """Start another process now."""
        process = self._new_process(spec)
        process.start_at = self._clock.now()
        self.processes.append(process)

    def retire(self, name: str) -> None:
        """Stop a process for good, as at a shutdown: with SIGTERM, and SIGKILL if it does not stop in time."""
        for process in [each for each in self.processes if each.name == name and not each.is_retired]:
            process.is_retired, process.start_at = True, None
            if process.is_alive:
                process.kill_at = self._clock.now() + self._timeouts.drain
                process.kill(signal.SIGTERM)
            else:
                self.processes.remove(process)

    def _new_process(self, spec: ProcessSpec) -> SupervisedProcess:
        delays = self._timeouts.delays
        return SupervisedProcess(spec, self._console, self._clock, self._draw, delays, self._memory_kills)

    def _run_once(self, on_ready: Callable[["Supervisor"], None]) -> None:
        if not self._is_stopping:
            self._follow_orders()
            self._start_stages()
            for process in self.processes:
                if process.start_at is not None and process.start_at <= self._clock.now():
                    spawned = process.start(list(self._own_descriptors(process)))
                    self._selector.register(spawned.log, selectors.EVENT_READ, process.read_log)
                    self._selector.register(spawned.status, selectors.EVENT_READ, process.read_status)
        self._watch_writers()
        for key, _ in self._selector.select(self._seconds_to_wait()):
            if isinstance(key.data, NonBlockingWriter):
                key.data.flush()
            elif key.data is not None and key.data() == 0:  # the pipe is closed; its process may still run
                self._selector.unregister(key.fd)
        for number in self._signals.take():
            self._handle_signal(number)
        for process in [*self.processes]:
            if process.spawned is not None:
                pid, status = os.waitpid(process.spawned.pid, os.WNOHANG)
                if pid:
                    self._reap(process, process.spawned, status)
        self._kill_hung()
        if self._is_stopping:
            self._stop_highest_stage()
        elif not self._was_ready and all(process.state == "ready" for process in self.processes):
            self._was_ready = True
            self._console.settle()
            on_ready(self)

    def _follow_orders(self) -> None:
        """Call `revise`. If it fails, because a disk is full for instance, say so once, and try again in every turn."""
        trouble = ""
        try:
            self._revise(self)
        except Exception as error:
            trouble = f"the processes cannot be changed as ordered; trying again: {error!r}"
        if trouble not in ("", self._trouble):
            self._console.say(trouble)
        self._trouble = trouble

    def _start_stages(self) -> None:
        """Start each stage once all processes of earlier stages have been ready or have died."""
        while self._num_stages_started < len(self._stages):
            started = self._stages[: self._num_stages_started]
            earlier = [process for process in self.processes if process.spec.stage in started]
            if not all(each.was_ready or each.num_starts > 1 or each.state == "dead" for each in earlier):
                return
            for process in self.processes:
                if process.spec.stage == self._stages[self._num_stages_started]:
                    process.start_at = self._clock.now()
            self._num_stages_started += 1

    def _watch_writers(self) -> None:
        """Watch only writers that have buffered output."""
        for writer in self._writers:
            is_watched = writer.fd in self._selector.get_map()
            if writer.is_waiting and not is_watched:
                self._selector.register(writer.fd, selectors.EVENT_WRITE, writer)
            elif is_watched and not writer.is_waiting:
                self._selector.unregister(writer.fd)

    def _own_descriptors(self, started: SupervisedProcess) -> Iterator[int]:
        """Yield the descriptors that the child may not keep."""
        for process in self.processes:
            if process.spawned is not None:
                yield from (process.spawned.log, process.spawned.status)
            if process.spec.listener is not None and process is not started:
                yield process.spec.listener
        if isinstance(self._selector, selectors.EpollSelector):
            yield self._selector.fileno()
        yield from self._signals.descriptors
        yield from self._terminal.descriptors
        yield from (writer.fd for writer in self._writers)

    def _seconds_to_wait(self) -> float | None:
        """Return the seconds until the next start, hang timeout or kill is due; None if nothing is due."""
        moments = [process.start_at for process in self.processes if process.start_at is not None]
        moments += [
            process.last_sign_of_life + self._hang_timeout(process)
            for process in self.processes
            if process.last_sign_of_life is not None
        ]
        moments += [process.kill_at for process in self.processes]
        wait = min([*moments, self._kill_at]) - self._clock.now()
        return None if wait == inf else max(0.0, wait)

    def _handle_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGHUP and not self._terminal.is_closed:
            for process in self.processes:
                if process.spec.reloads:
                    process.kill(signal.SIGHUP)
        elif not self._is_stopping:
            self._console.settle()
            self._console.say("Shutting down: finishing running requests. Press Ctrl-C again to stop at once.")
            self._shut_down(0)
        elif number == signal.SIGINT:
            self._exit_status = EXIT_INTERRUPTED
            self._kill_all()

    def _shut_down(self, status: int) -> None:
        self._exit_status, self._is_stopping = status, True
        for process in self.processes:
            process.start_at = None
            if process.spec.listener is not None:
                os.close(process.spec.listener)

    def _reap(self, process: SupervisedProcess, spawned: SpawnedProcess, status: int) -> None:
        for fd in (spawned.log, spawned.status):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        process.reap(status)
        if process.is_retired:
            self.processes.remove(process)
            self._console.say(f"{process.name} was stopped (pid {spawned.pid})")
        if self._is_stopping or process.is_retired:
            return
        if process.spec.is_optional and not process.was_ready and self._give_up(process, status):
            return
        is_usage = os.waitstatus_to_exitcode(status) == EXIT_USAGE and not process.spec.is_optional
        if process.num_starts == 1 and not process.was_ready and is_usage:
            self._console.settle()
            self._final_message = f"{process.name} cannot start; shutting down: {process.last_line}"
            self._shut_down(EXIT_USAGE)
            return
        delay = process.backoff.next_delay()
        process.start_at = self._clock.now() + delay
        failures = process.backoff.num_failures
        again = f", {failures} times in a row" if failures > 3 else ""
        self._console.say(
            f"{process.name} {format_exit(status)} after {process.seconds:.1f} s (pid {spawned.pid}){again}; "
            f"restarting in {delay:.1f} s"
        )

    def _give_up(self, process: SupervisedProcess, status: int) -> bool:
        """Remove an optional process that can never run, or that has failed too often before it was ready."""
        is_refusal = os.waitstatus_to_exitcode(status) == EXIT_USAGE
        if not is_refusal and process.num_starts < _MAX_OPTIONAL_STARTS:
            return False
        end = process.previous_end
        reason = process.last_line if is_refusal or end is None else f"its process ended: {end.text}"
        self.processes.remove(process)
        self.failed_starts[process.name] = reason
        self._console.say(f"{process.name} cannot start and is given up: {reason}")
        return True

    def _kill_hung(self) -> None:
        for process in self.processes:
            last, timeout = process.last_sign_of_life, self._hang_timeout(process)
            if last is not None and self._clock.now() - last >= timeout:
                self._console.say(f"{process.name} has not responded for {timeout:g} s: killing it")
                process.last_sign_of_life, process.is_killed_as_hung = None, True
                process.kill(signal.SIGKILL)
            if self._clock.now() >= process.kill_at:
                self._console.say(f"{process.name} did not stop within {self._timeouts.drain:g} s: killing it")
                process.kill_at = inf
                process.kill(signal.SIGKILL)

    def _hang_timeout(self, process: SupervisedProcess) -> float:
        return self._timeouts.hang if process.sends_heartbeats else self._timeouts.start

    def _kill_all(self) -> None:
        if not self._is_stopping:
            self._shut_down(EXIT_KILLED)
        for process in [*self.processes]:
            if process.spawned is not None:
                process.kill(signal.SIGKILL)
                _, status = os.waitpid(process.spawned.pid, 0)
                self._reap(process, process.spawned, status)

    def _stop_highest_stage(self) -> None:
        """Send SIGTERM to the highest stage that still runs, and SIGKILL if it does not stop in time."""
        alive = [process for process in self.processes if process.is_alive]
        stage = max((process.spec.stage for process in alive), default=None)
        highest = [process for process in alive if process.spec.stage == stage]
        if stage != self._stopping_stage:
            self._stopping_stage, self._kill_at = stage, self._clock.now() + self._timeouts.drain
            for process in highest:
                process.kill(signal.SIGTERM)
        elif self._clock.now() >= self._kill_at:
            self._kill_at, self._had_to_kill = inf, True
            for process in highest:
                self._console.say(f"{process.name} did not stop within {self._timeouts.drain:g} s: killing it")
                process.kill(signal.SIGKILL)
