"""Sets of processes that crash, hang, print and do not exit: `python -m tests.octet.supervisor.plays`."""

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
from octet.supervisor.process import ProcessSpec
from octet.supervisor.status import StatusReporter
from octet.supervisor.supervisor import Supervisor, SupervisorTimeouts

QUICK = BackoffDelays(first=0.02, most=0.1, healthy=30)
NUM_BEATS = 60  # of 0.05 s: longer than the hang and start timeouts of any play
NUM_SHOUTERS, NUM_SHOUTS = 6, 1500


class Play(NamedTuple):
    roles: Sequence[ProcessSpec]
    care: SupervisorTimeouts = SupervisorTimeouts(delays=QUICK)


class Diary:
    """Append to the list of events that the test reads."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "diary"

    def write(self, entry: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{entry}\n")

    def count(self, entry: str) -> int:
        """How often it has been written, this time included."""
        self.write(entry)
        return self._file.read_text().splitlines().count(entry)


def on_term(action: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> None:
        action()

    signal.signal(signal.SIGTERM, handle)


def forever(beat: Callable[[], None] = lambda: None, after: Callable[[], None] = lambda: None) -> int:
    """`after` is called once, after NUM_BEATS beats."""
    for number in itertools.count(1):
        beat()
        time.sleep(0.05)
        if number == NUM_BEATS:
            after()
    return 0


def calm(diary: Diary, name: str, status: StatusReporter, *, last_act: float = 0.0, slow_start: float = 0.0) -> int:
    def end() -> None:
        diary.write(f"{name} asked to stop")
        time.sleep(last_act)
        diary.write(f"{name} ended")
        sys.exit(0)

    on_term(end)
    signal.signal(signal.SIGHUP, lambda number, frame: diary.write(f"{name} reloads"))
    status.progress("rehearsing", 0, 10)
    time.sleep(slow_start)
    status.progress("rehearsing", 10, 10)
    diary.write(f"{name} ready")
    status.ready(f"{name} in costume")
    return forever(status.alive, lambda: diary.write(f"{name} still here"))


def dying(diary: Diary, how_often: int, status: StatusReporter) -> int:
    if diary.count("phoenix born") <= how_often:
        print("ashes", end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return calm(diary, "phoenix", status)


def wrong(diary: Diary, when: int, status: StatusReporter) -> int:
    """Ends with status 2 in one of its lives, and with 1 in those before."""
    life = diary.count("wrong born")
    if life <= when:
        print("block_size must be in [1, 1024], got 0", file=sys.stderr)
        return 2 if life == when else 1
    return calm(diary, "wrong", status)


def stuck(diary: Diary, status: StatusReporter) -> int:
    if diary.count("stuck born") > 1:
        return calm(diary, "stuck", status)
    status.ready("for a moment")
    status.alive()
    time.sleep(1000)
    return 0


def speechless(diary: Diary, status: StatusReporter) -> int:
    """Hangs before its first sign of life, the first time."""
    if diary.count("speechless born") == 1:
        time.sleep(1000)
    for step in range(6):
        status.progress("finding words", step, 6)
        time.sleep(0.5)
    return calm(diary, "speechless", status)


def chatty(diary: Diary, status: StatusReporter) -> int:
    """Writes far more than a pipe holds, and dies three times of it."""
    life = diary.count("chatty born")
    print("so much to say " * 20_000)
    return 1 if life < 4 else calm(diary, "chatty", status)


def silent(status: StatusReporter) -> int:
    """Is ready, and says no more."""
    on_term(lambda: sys.exit(0))
    status.ready("that is all")
    return forever()


def stubborn(status: StatusReporter) -> int:
    on_term(lambda: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    status.ready("here to stay")
    return forever()


def shouting(number: int, status: StatusReporter) -> int:
    on_term(lambda: sys.exit(0))
    for shout in range(NUM_SHOUTS):
        os.write(1 + shout % 2, f"{number} shouts {shout} {'é' * (shout % 50)}\n".encode())
    os.write(1, "ß".encode() * 10_000 + b"\nunfinished")
    status.ready("hoarse")
    return forever()


def plays(diary: Diary) -> dict[str, Callable[[], Play]]:
    def back(last_act: float = 0.0, slow_start: float = 0.0) -> ProcessSpec:
        return ProcessSpec("back", fork=partial(calm, diary, "back", last_act=last_act, slow_start=slow_start))

    def front(last_act: float = 0.0) -> ProcessSpec:
        return ProcessSpec("front", fork=partial(calm, diary, "front", last_act=last_act), stage=1, reloads=True)

    program = (
        "from octet.supervisor.status import StatusReporter; s = StatusReporter.from_environment(); s.ready('sent')"
    )
    wait = "; import time, sys; print('a program ready on stage', flush=True); time.sleep(1000)"
    return {
        "calm": lambda: Play([front(), back(slow_start=0.3)]),
        "drain": lambda: Play([back(last_act=0.1), front(last_act=0.4)]),
        "dying": lambda: Play([ProcessSpec("phoenix", fork=partial(dying, diary, 5)), back()]),
        "wrong": lambda: Play([ProcessSpec("wrong", fork=partial(wrong, diary, 1)), back()]),
        "wrong later": lambda: Play([ProcessSpec("wrong", fork=partial(wrong, diary, 2)), front()]),
        "stuck": lambda: Play(
            [ProcessSpec("stuck", fork=partial(stuck, diary))], SupervisorTimeouts(hang=2, delays=QUICK)
        ),
        "chatty": lambda: Play([ProcessSpec("chatty", fork=partial(chatty, diary))]),
        "speechless": lambda: Play(
            [ProcessSpec("speechless", fork=partial(speechless, diary)), ProcessSpec("silent", fork=silent), front()],
            SupervisorTimeouts(start=2, delays=QUICK),
        ),
        "stubborn": lambda: Play([ProcessSpec("stubborn", fork=stubborn), back()], SupervisorTimeouts(drain=2)),
        "stubborn and slow": lambda: Play(
            [ProcessSpec("stubborn", fork=stubborn), front()], SupervisorTimeouts(drain=1000)
        ),
        "shouting": lambda: Play([ProcessSpec(f"s{i}", fork=partial(shouting, i)) for i in range(NUM_SHOUTERS)]),
        "programs": lambda: Play(
            [
                ProcessSpec("teller", command=(sys.executable, "-c", program + wait)),
                ProcessSpec("speaker", command=(sys.executable, "-c", "pass" + wait), ready_words=" ready on "),
            ]
        ),
        "no such program": lambda: Play([ProcessSpec("ghost", command=("/nowhere/to/be/found",))]),
    }


def main(name: str, folder: str) -> int:
    roles, care = plays(Diary(Path(folder)))[name]()
    out, log = NonBlockingWriter(sys.stdout.fileno()), NonBlockingWriter(sys.stderr.fileno())

    def tell(supervisor: Supervisor) -> None:
        out.write(f"all ready: {', '.join(process.ready_text for process in supervisor.processes)}\n")
        out.write(f"pids: {' '.join(map(str, supervisor.pids))}\n")

    return Supervisor(roles, open_console(log, [role.name for role in roles]), [out, log], care).run(tell)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
