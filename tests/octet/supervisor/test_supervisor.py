"""The supervisor with real processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.octet.supervisor.processes import NUM_LINES, NUM_WRITERS
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]


class SupervisorProcess:
    """A running supervisor, its output, and the events that its children wrote."""

    def __init__(self, name: str, folder: Path) -> None:
        self._events = folder / "events"
        self._output = folder / "said"
        self._logged = folder / "logged"
        with self._output.open("w") as output, self._logged.open("w") as logged:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tests.octet.supervisor.processes", name, str(folder)],
                cwd=ROOT,
                stdout=output,
                stderr=logged,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def logged(self) -> str:
        return self._logged.read_text()

    @property
    def events(self) -> list[str]:
        return self._events.read_text().splitlines() if self._events.exists() else []

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self.output.partition("pids: ")[2].split()]

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"output {self.output!r}, logged {self.logged!r}, events {self.events}"
            time.sleep(0.01)

    def until_ready(self) -> None:
        self.until(lambda: "pids: " in self.output and self.output.endswith("\n"))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(PATIENCE)


@contextmanager
def supervised(name: str, folder: Path) -> Iterator[SupervisorProcess]:
    """Run a supervisor. None of its processes outlives the context."""
    process = SupervisorProcess(name, folder)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.wait()
        try:
            process.until(lambda: not any(map(is_alive, process.pids)))
        finally:
            kill_all(process.pids)


def kill_all(pids: Sequence[int]) -> None:
    """Kill the processes that a failed supervisor has left behind."""
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_stages_start_from_below_and_stop_from_above(tmp_path: Path) -> None:
    with supervised("drain", tmp_path) as running:
        running.until_ready()
        assert running.output.startswith("all ready: back is ready, front is ready\n")
        assert running.end() == 0
        assert running.events == [
            "back ready",
            "front ready",
            "front asked to stop",
            "front ended",
            "back asked to stop",
            "back ended",
        ]
        assert not any(map(is_alive, running.pids))


def test_optional_processes_come_and_go(tmp_path: Path) -> None:
    with supervised("changing", tmp_path) as running:
        refused = "refusing failed: block_size must be in [1, 1024], got 0"
        awaited = {refused, "passing ended", "crashing ready"}
        running.until(lambda: awaited <= {*running.events})
        running.until(lambda: "passing was stopped" in running.logged)
        assert running.logged.count("cannot be changed as ordered; trying again: OSError(28, 'no space") == 1
        assert "refusing cannot start and is given up" in running.logged
        assert running.events.count("wrong started") == 1 and running.events.count("passing ready") == 1
        assert running.events.count("crashing started") == 2, "a kill before it was ready is no refusal"
        assert running.popen.poll() is None and running.end() == 0
        assert "back ended" in running.events


def test_progress_is_shown_and_lines_have_names(tmp_path: Path) -> None:
    with supervised("steady", tmp_path) as running:
        running.until_ready()
        lines = running.logged.splitlines()
        assert lines[0] == "back  | loading ..."
        ready = re.fullmatch(rf"back  \| ready after (\d+\.\d) s, pid {running.pids[1]}", lines[1])
        assert ready is not None and float(ready[1]) >= 0.3
        assert lines[2] == "front | loading ..."


def test_dead_process_is_restarted_until_it_is_ready(tmp_path: Path) -> None:
    with supervised("crashing", tmp_path) as running:
        running.until_ready()
        assert running.events.count("crashing started") == 6
        assert running.logged.count("crashing was killed by SIGKILL") == 5
        assert "5 times in a row; restarting in" in running.logged
        assert running.logged.count("crashing | last line\n") == 5, "an incomplete last line must be logged too"
        victim = running.pids[0]
        os.kill(victim, signal.SIGKILL)
        running.until(lambda: running.events.count("crashing ready") == 2)
        assert f" s (pid {victim})" in running.logged
        killed = "crashing after killed: killed by SIGKILL"
        assert running.events.count(f"{killed}; its restart failed: killed by SIGKILL") == 1
        assert running.events.count(killed) == 1, "the end of a process that was ready replaces earlier ends"
        assert running.output.count("all ready") == 1
        assert running.end() == 0


def test_process_that_can_never_run_stops_everything(tmp_path: Path) -> None:
    with supervised("wrong", tmp_path) as running:
        assert running.popen.wait(PATIENCE) == 2
        assert running.logged.endswith("wrong cannot start; shutting down: block_size must be in [1, 1024], got 0\n")
        assert running.output == ""


def test_only_the_first_start_stops_everything(tmp_path: Path) -> None:
    with supervised("wrong later", tmp_path) as running:
        running.until_ready()
        assert running.events.count("wrong started") == 3
        assert "front ready" in running.events
        assert running.end() == 0


def test_hung_process_is_killed_and_restarted(tmp_path: Path) -> None:
    with supervised("stuck", tmp_path) as running:
        running.until(lambda: "stuck ready" in running.events)
        assert "stuck has not responded for 2 s: killing it" in running.logged
        assert "stuck after hung: hung: killed by its supervisor" in running.events
        running.until(lambda: "stuck still here" in running.events)
        assert running.events.count("stuck started") == 2, "a process that sends heartbeats must not be killed"
        assert running.end() == 0


def test_process_hung_at_start_does_not_block_the_rest(tmp_path: Path) -> None:
    with supervised("silent-at-start", tmp_path) as running:
        running.until_ready()
        assert running.logged.count("has not responded for 2 s: killing it") == 1
        assert running.events.count("silent-at-start started") == 2, "progress must count as a heartbeat"
        running.until(lambda: "front still here" in running.events)
        assert running.output.startswith("all ready: silent-at-start is ready, only ready, front is ready\n")
        assert "silent was" not in running.logged, "a ready process without heartbeats must not be killed"
        assert running.end() == 0


def test_processes_have_names(tmp_path: Path) -> None:
    with supervised("steady", tmp_path) as running:
        running.until_ready()
        names = [Path(f"/proc/{pid}/comm").read_text() for pid in running.pids]
        assert names == ["octet:front\n", "octet:back\n"]


def test_slow_reader_does_not_stop_the_supervisor(tmp_path: Path) -> None:
    """The pipe is full, as in `octet serve 2>&1 | less` or after Ctrl-S. Processes must still be restarted."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)
    command = [sys.executable, "-m", "tests.octet.supervisor.processes", "printing", str(tmp_path)]
    popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=writing, start_new_session=True)
    os.close(writing)
    try:
        events = tmp_path / "events"
        wait_until(lambda: events.exists() and events.read_text().count("printing started") == 4)
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(PATIENCE) == 0
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read() == b"." * filled
    finally:
        popen.kill()
        popen.wait()


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_stopped_process_is_killed_and_restarted(tmp_path: Path) -> None:
    with supervised("stuck", tmp_path) as running:
        running.until(lambda: "stuck ready" in running.events)
        second = next(pid for pid in children_of(running.popen.pid))
        os.kill(second, signal.SIGSTOP)
        running.until(lambda: running.events.count("stuck ready") >= 2)
        assert not is_alive(second)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_process_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    with supervised("unstoppable", tmp_path) as running:
        running.until_ready()
        assert running.end() == 1
        assert "unstoppable did not stop within 2 s: killing it" in running.logged
        assert "back ended" in running.events
        assert not any(map(is_alive, running.pids))


def test_the_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    with supervised("unstoppable and slow", tmp_path) as running:
        running.until_ready()
        os.killpg(running.popen.pid, signal.SIGINT)
        running.until(lambda: "front ended" in running.events)
        running.popen.send_signal(signal.SIGTERM)
        running.until(lambda: not is_pending(running.popen.pid, signal.SIGTERM))
        assert running.popen.poll() is None, "running requests must be finished first"
        os.killpg(running.popen.pid, signal.SIGINT)
        assert running.popen.wait(PATIENCE) == 130
        assert not any(map(is_alive, running.pids))


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Return whether the process has been sent the signal but has not handled it yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = re.findall(r"^ShdPnd:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    for name in ("unstoppable and slow", "programs"):
        folder = tmp_path / name
        folder.mkdir()
        with supervised(name, folder) as running:
            running.until_ready()
            assert len(running.pids) == 2 and all(map(is_alive, running.pids))
            running.popen.kill()
            running.popen.wait()
            running.until(lambda running=running: not any(map(is_alive, running.pids)))  # type: ignore[misc]


def test_no_line_is_lost_when_many_processes_write_at_once(tmp_path: Path) -> None:
    with supervised("writing", tmp_path) as running:
        running.until_ready()
        assert running.end() == 0
        lines: dict[str, list[str]] = {f"s{i}": [] for i in range(NUM_WRITERS)}
        for line in running.logged.splitlines():
            name, bar, text = line.partition(" | ")
            if bar and text != "ready after" and not text.startswith("ready after"):
                lines[name].append(text)
        for i, received in enumerate(lines.values()):
            writes = [f"{i} writes {line_number} {'é' * (line_number % 50)}" for line_number in range(NUM_LINES)]
            assert received[:NUM_LINES] == writes
            assert "".join(received[NUM_LINES:-1]) == "ß" * 10_000
            assert all(len(line.encode()) <= 8192 for line in received)
            assert received[-1] == "unfinished"


def test_programs_report_ready_by_status_or_log_line(tmp_path: Path) -> None:
    with supervised("programs", tmp_path) as running:
        running.until_ready()
        assert running.output.startswith("all ready: sent, a program ready on time\n")
        assert running.end() == 0, "programs without a signal handler must end immediately"


def test_missing_program_is_reported_at_every_start(tmp_path: Path) -> None:
    with supervised("no such program", tmp_path) as running:
        running.until(lambda: running.logged.count("missing exited with status 127") >= 2)
        assert "missing | cannot run /nowhere/to/be/found" in running.logged
        assert running.end() == 0


def test_sighup_reaches_processes_that_reload(tmp_path: Path) -> None:
    with supervised("steady", tmp_path) as running:
        running.until_ready()
        running.popen.send_signal(signal.SIGHUP)
        running.until(lambda: "front reloads" in running.events)
        assert running.end() == 0
        assert "back reloads" not in running.events


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_supervisor_can_be_ended_at_any_moment_of_its_start(tmp_path: Path, delay: float) -> None:
    with supervised("steady", tmp_path) as running:
        running.until(lambda: "back" in running.logged or running.pids or children_of(running.popen.pid))
        time.sleep(delay)
        assert running.end() == 0
