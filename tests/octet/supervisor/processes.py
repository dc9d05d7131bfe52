"""Sets of processes that crash, hang, print a lot, or ignore signals: `python -m tests.octet.supervisor.processes`."""

import errno
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from octet.backoff import BackoffDelays
from octet.supervisor.console import NonBlockingWriter, open_console
from octet.supervisor.process import ProcessEnd, ProcessSpec, StatusReporter
from octet.supervisor.supervisor import Supervisor, SupervisorTimeouts

QUICK = BackoffDelays(first=0.02, most=0.1, healthy=30)
# Each beat takes 0.05 s. Together they last longer than the hang and start timeouts of every process set.
NUM_BEATS = 60
NUM_FAILED_ORDERS = 4
NUM_WRITERS, NUM_LINES = 6, 1500


class ProcessSet(NamedTuple):
    roles: Sequence[ProcessSpec]
    care: SupervisorTimeouts = SupervisorTimeouts(delays=QUICK)
    revise: Callable[[Supervisor], None] = lambda _: None


class EventFile:
    """A file of events that processes append to and the test reads."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "events"

    def write(self, entry: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{entry}\n")

    def count(self, entry: str) -> int:
        """Write the entry. Return how often it has been written."""
        self.write(entry)
        return self._file.read_text().splitlines().count(entry)


def on_term(action: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        action()

    signal.signal(signal.SIGTERM, handle)


def forever(beat: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None) -> int:
    """Call `beat` about every 50 ms forever, and call `after` once, after NUM_BEATS beats."""
    for number in itertools.count(1):
        beat()
        time.sleep(0.05)
        if number == NUM_BEATS:
            after()
    return 0


def steady(
    events: EventFile, name: str, status: StatusReporter, *, stop_seconds: float = 0.0, start_seconds: float = 0.0
) -> int:
    def end() -> None:
        events.write(f"{name} asked to stop")
        time.sleep(stop_seconds)
        events.write(f"{name} ended")
        sys.exit(0)

    previous = ProcessEnd.from_environment()
    if previous is not None:
        events.write(f"{name} after {previous.kind}: {previous.text}")
    on_term(end)
    signal.signal(signal.SIGHUP, lambda number, frame: events.write(f"{name} reloads"))
    status.progress("loading", 0, 10)
    time.sleep(start_seconds)
    status.progress("loading", 10, 10)
    status.alive()  # before the event: a test may stop the process right after it
    events.write(f"{name} ready")
    status.ready(f"{name} is ready")
    return forever(status.alive, lambda: events.write(f"{name} still here"))


def crashing(events: EventFile, how_often: int, status: StatusReporter) -> int:
    if events.count("crashing started") <= how_often:
        print("last line", end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return steady(events, "crashing", status)


def wrong(events: EventFile, when: int, status: StatusReporter) -> int:
    """Exits with status 1 at every start before number `when`, and with status 2 at start number `when`. Later starts
    run normally."""
    life = events.count("wrong started")
    if life <= when:
        print("block_size must be in [1, 1024], got 0", file=sys.stderr)
        return 2 if life == when else 1
    return steady(events, "wrong", status)


def stuck(events: EventFile, status: StatusReporter) -> int:
    if events.count("stuck started") > 1:
        return steady(events, "stuck", status)
    status.ready("ready once")
    status.alive()
    time.sleep(1000)
    return 0


def silent_at_start(events: EventFile, status: StatusReporter) -> int:
    """Hangs at its first start before it sends a status message."""
    if events.count("silent-at-start started") == 1:
        time.sleep(1000)
    for step in range(6):
        status.progress("loading words", step, 6)
        time.sleep(0.5)
    return steady(events, "silent-at-start", status)


def printing(events: EventFile, status: StatusReporter) -> int:
    """Writes far more than a pipe holds, and exits at its first three starts."""
    life = events.count("printing started")
    print("much output " * 20_000)
    return 1 if life < 4 else steady(events, "printing", status)


def change_processes(events: EventFile, supervisor: Supervisor) -> None:
    """Once `back` is ready, fail a few times, then add an optional process that refuses to start, one that is killed at
    its first start, and one that is retired again as soon as it is ready."""
    names = ("refusing", "killed-once", "passing")
    is_back_ready = any(process.name == "back" and process.was_ready for process in supervisor.processes)
    if is_back_ready and events.count("asked") <= NUM_FAILED_ORDERS:
        raise OSError(errno.ENOSPC, "no space left on device")
    if is_back_ready and events.count("added") == 1:
        roles = (partial(wrong, events, 1), partial(crashing, events, 1), partial(steady, events, "passing"))
        for name, role in zip(names, roles, strict=True):
            supervisor.add(ProcessSpec(name, fork=role, is_optional=True))
    for process in [each for each in supervisor.processes if each.name == "passing" and each.was_ready]:
        supervisor.retire(process.name)
    for name, reason in [*supervisor.failed_starts.items()]:
        events.write(f"{name} failed: {reason}")
        del supervisor.failed_starts[name]


def silent(status: StatusReporter) -> int:
    """Reports ready and then sends no heartbeats."""
    on_term(lambda: sys.exit(0))
    status.ready("only ready")
    return forever()


def unstoppable(status: StatusReporter) -> int:
    on_term(lambda: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status.ready("ready")
    return forever()


def writing(number: int, status: StatusReporter) -> int:
    on_term(lambda: sys.exit(0))
    for line_number in range(NUM_LINES):
        os.write(1 + line_number % 2, f"{number} writes {line_number} {'é' * (line_number % 50)}\n".encode())
    os.write(1, "ß".encode() * 10_000 + b"\nunfinished")
    status.ready("written")
    return forever()


def process_sets(events: EventFile) -> dict[str, Callable[[], ProcessSet]]:
    def back(stop_seconds: float = 0.0, start_seconds: float = 0.0) -> ProcessSpec:
        return ProcessSpec(
            "back", fork=partial(steady, events, "back", stop_seconds=stop_seconds, start_seconds=start_seconds)
        )

    def front(stop_seconds: float = 0.0) -> ProcessSpec:
        return ProcessSpec(
            "front", fork=partial(steady, events, "front", stop_seconds=stop_seconds), stage=1, reloads=True
        )

    program = (
        "from octet.supervisor.process import StatusReporter; s = StatusReporter.from_environment(); s.ready('sent')"
    )
    wait = "; import time, sys; print('a program ready on time', flush=True); time.sleep(1000)"
    return {
        "steady": lambda: ProcessSet([front(), back(start_seconds=0.3)]),
        "changing": lambda: ProcessSet([back()], revise=partial(change_processes, events)),
        "drain": lambda: ProcessSet([back(stop_seconds=0.1), front(stop_seconds=0.4)]),
        "crashing": lambda: ProcessSet([ProcessSpec("crashing", fork=partial(crashing, events, 5)), back()]),
        "wrong": lambda: ProcessSet([ProcessSpec("wrong", fork=partial(wrong, events, 1)), back()]),
        "wrong later": lambda: ProcessSet([ProcessSpec("wrong", fork=partial(wrong, events, 2)), front()]),
        "stuck": lambda: ProcessSet(
            [ProcessSpec("stuck", fork=partial(stuck, events))], SupervisorTimeouts(hang=2, delays=QUICK)
        ),
        "printing": lambda: ProcessSet([ProcessSpec("printing", fork=partial(printing, events))]),
        "silent-at-start": lambda: ProcessSet(
            [
                ProcessSpec("silent-at-start", fork=partial(silent_at_start, events)),
                ProcessSpec("silent", fork=silent),
                front(),
            ],
            SupervisorTimeouts(start=2, delays=QUICK),
        ),
        "unstoppable": lambda: ProcessSet(
            [ProcessSpec("unstoppable", fork=unstoppable), back()], SupervisorTimeouts(drain=2)
        ),
        "unstoppable and slow": lambda: ProcessSet(
            [ProcessSpec("unstoppable", fork=unstoppable), front()], SupervisorTimeouts(drain=1000)
        ),
        "writing": lambda: ProcessSet([ProcessSpec(f"s{i}", fork=partial(writing, i)) for i in range(NUM_WRITERS)]),
        "programs": lambda: ProcessSet(
            [
                ProcessSpec("reporting", command=(sys.executable, "-c", program + wait)),
                ProcessSpec("printing-ready", command=(sys.executable, "-c", "pass" + wait), ready_words=" ready on "),
            ]
        ),
        "no such program": lambda: ProcessSet([ProcessSpec("missing", command=("/nowhere/to/be/found",))]),
    }


def main(name: str, folder: str) -> int:
    roles, care, revise = process_sets(EventFile(Path(folder)))[name]()
    out, log = NonBlockingWriter(sys.stdout.fileno()), NonBlockingWriter(sys.stderr.fileno())

    def report_ready(supervisor: Supervisor) -> None:
        out.write(f"all ready: {', '.join(process.ready_text for process in supervisor.processes)}\n")
        out.write(f"pids: {' '.join(map(str, supervisor.pids))}\n")

    return Supervisor(roles, open_console(log, [role.name for role in roles]), [out, log], care, revise=revise).run(
        report_ready
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
