"""The supervisor with real processes that do what processes do."""

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

from tests.octet.supervisor.plays import NUM_SHOUTERS, NUM_SHOUTS

ROOT = Path(__file__).parents[3]


class Stage:
    """A supervisor under way, what it writes, and what its children have noted."""

    def __init__(self, play: str, folder: Path) -> None:
        self._diary = folder / "diary"
        self._output = folder / "said"
        self._logged = folder / "logged"
        with self._output.open("w") as output, self._logged.open("w") as logged:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tests.octet.supervisor.plays", play, str(folder)],
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
    def diary(self) -> list[str]:
        return self._diary.read_text().splitlines() if self._diary.exists() else []

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self.output.partition("pids: ")[2].split()]

    def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"said {self.output!r}, logged {self.logged!r}, diary {self.diary}"
            time.sleep(0.01)

    def until_ready(self) -> None:
        self.until(lambda: "pids: " in self.output and self.output.endswith("\n"))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(60)


@contextmanager
def stage(play: str, folder: Path) -> Iterator[Stage]:
    """No process outlives it."""
    on_stage = Stage(play, folder)
    try:
        yield on_stage
    finally:
        on_stage.popen.kill()
        on_stage.popen.wait()
        try:
            on_stage.until(lambda: not any(map(is_alive, on_stage.pids)))
        finally:
            kill_all(on_stage.pids)


def kill_all(pids: Sequence[int]) -> None:
    """Those that a broken supervisor would leave behind."""
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
    with stage("drain", tmp_path) as on:
        on.until_ready()
        assert on.output.startswith("all ready: back in costume, front in costume\n")
        assert on.end() == 0
        assert on.diary == [
            "back ready",
            "front ready",
            "front asked to stop",
            "front ended",
            "back asked to stop",
            "back ended",
        ]
        assert not any(map(is_alive, on.pids))


def test_progress_is_shown_and_lines_have_names(tmp_path: Path) -> None:
    with stage("calm", tmp_path) as on:
        on.until_ready()
        lines = on.logged.splitlines()
        assert lines[0] == "back  | rehearsing ..."
        ready = re.fullmatch(rf"back  \| ready after (\d+\.\d) s, pid {on.pids[1]}", lines[1])
        assert ready is not None and float(ready[1]) >= 0.3
        assert lines[2] == "front | rehearsing ..."


def test_dead_process_is_restarted_until_it_is_ready(tmp_path: Path) -> None:
    with stage("dying", tmp_path) as on:
        on.until_ready()
        assert on.diary.count("phoenix born") == 6
        assert on.logged.count("phoenix was killed by SIGKILL") == 5
        assert "5 times in a row; restarting in" in on.logged
        assert on.logged.count("phoenix | ashes\n") == 5, "the last words count, whole line or not"
        victim = on.pids[0]
        os.kill(victim, signal.SIGKILL)
        on.until(lambda: on.diary.count("phoenix ready") == 2)
        assert f" s (pid {victim})" in on.logged
        assert on.output.count("all ready") == 1
        assert on.end() == 0


def test_process_that_can_never_run_stops_everything(tmp_path: Path) -> None:
    with stage("wrong", tmp_path) as on:
        assert on.popen.wait(60) == 2
        assert on.logged.endswith("wrong cannot start, so everything stops: block_size must be in [1, 1024], got 0\n")
        assert on.output == ""


def test_only_the_first_start_stops_everything(tmp_path: Path) -> None:
    with stage("wrong later", tmp_path) as on:
        on.until_ready()
        assert on.diary.count("wrong born") == 3
        assert "front ready" in on.diary
        assert on.end() == 0


def test_hung_process_is_killed_and_restarted(tmp_path: Path) -> None:
    with stage("stuck", tmp_path) as on:
        on.until(lambda: "stuck ready" in on.diary)
        assert "stuck has not responded for 2 s: killing it" in on.logged
        on.until(lambda: "stuck still here" in on.diary)
        assert on.diary.count("stuck born") == 2, "one that gives signs of life is left alone"
        assert on.end() == 0


def test_process_hung_at_start_does_not_block_the_rest(tmp_path: Path) -> None:
    with stage("speechless", tmp_path) as on:
        on.until_ready()
        assert on.logged.count("has not responded for 2 s: killing it") == 1
        assert on.diary.count("speechless born") == 2, "progress is a sign of life"
        on.until(lambda: "front still here" in on.diary)
        assert on.output.startswith("all ready: speechless in costume, that is all, front in costume\n")
        assert "silent was" not in on.logged, "a ready process without signs of life is left alone"
        assert on.end() == 0


def test_processes_have_names(tmp_path: Path) -> None:
    with stage("calm", tmp_path) as on:
        on.until_ready()
        names = [Path(f"/proc/{pid}/comm").read_text() for pid in on.pids]
        assert names == ["octet:front\n", "octet:back\n"]


def test_slow_reader_does_not_stop_the_supervisor(tmp_path: Path) -> None:
    """As in `octet serve 2>&1 | less`, or after Ctrl-S: the pipe is full, and those in care are cared for."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)
    command = [sys.executable, "-m", "tests.octet.supervisor.plays", "chatty", str(tmp_path)]
    popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=writing, start_new_session=True)
    os.close(writing)
    try:
        diary = tmp_path / "diary"
        patiently(lambda: diary.exists() and diary.read_text().count("chatty born") == 4)
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(60) == 0
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read() == b"." * filled
    finally:
        popen.kill()
        popen.wait()


def patiently(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_stopped_process_is_killed_and_restarted(tmp_path: Path) -> None:
    with stage("stuck", tmp_path) as on:
        on.until(lambda: "stuck ready" in on.diary)
        second = next(pid for pid in children_of(on.popen.pid))
        os.kill(second, signal.SIGSTOP)
        on.until(lambda: on.diary.count("stuck ready") == 2)
        assert not is_alive(second)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_process_that_does_not_stop_in_time_is_killed(tmp_path: Path) -> None:
    with stage("stubborn", tmp_path) as on:
        on.until_ready()
        assert on.end() == 1
        assert "stubborn did not stop within 2 s: killing it" in on.logged
        assert "back ended" in on.diary
        assert not any(map(is_alive, on.pids))


def test_the_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    with stage("stubborn and slow", tmp_path) as on:
        on.until_ready()
        os.killpg(on.popen.pid, signal.SIGINT)
        on.until(lambda: "front ended" in on.diary)
        on.popen.send_signal(signal.SIGTERM)
        on.until(lambda: not is_pending(on.popen.pid, signal.SIGTERM))
        assert on.popen.poll() is None, "what runs is finished first"
        os.killpg(on.popen.pid, signal.SIGINT)
        assert on.popen.wait(60) == 130
        assert not any(map(is_alive, on.pids))


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether the signal has not been delivered yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = re.findall(r"^ShdPnd:\s*(\w+)$", status, re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_supervisor_that_is_killed_leaves_no_orphans(tmp_path: Path) -> None:
    for play in ("stubborn and slow", "programs"):
        folder = tmp_path / play
        folder.mkdir()
        with stage(play, folder) as on:
            on.until_ready()
            assert len(on.pids) == 2 and all(map(is_alive, on.pids))
            on.popen.kill()
            on.popen.wait()
            on.until(lambda on=on: not any(map(is_alive, on.pids)))  # type: ignore[misc]


def test_nothing_is_lost_when_many_write_at_once(tmp_path: Path) -> None:
    with stage("shouting", tmp_path) as on:
        on.until_ready()
        assert on.end() == 0
        lines: dict[str, list[str]] = {f"s{i}": [] for i in range(NUM_SHOUTERS)}
        for line in on.logged.splitlines():
            name, bar, text = line.partition(" | ")
            if bar and text != "ready after" and not text.startswith("ready after"):
                lines[name].append(text)
        for i, received in enumerate(lines.values()):
            shouts = [f"{i} shouts {shout} {'é' * (shout % 50)}" for shout in range(NUM_SHOUTS)]
            assert received[:NUM_SHOUTS] == shouts
            assert "".join(received[NUM_SHOUTS:-1]) == "ß" * 10_000
            assert all(len(line.encode()) <= 8192 for line in received)
            assert received[-1] == "unfinished"


def test_programs_report_ready_by_status_or_log_line(tmp_path: Path) -> None:
    with stage("programs", tmp_path) as on:
        on.until_ready()
        assert on.output.startswith("all ready: sent, a program ready on stage\n")
        assert on.end() == 0, "they have no handler and simply go"


def test_missing_program_is_reported_at_every_start(tmp_path: Path) -> None:
    with stage("no such program", tmp_path) as on:
        on.until(lambda: on.logged.count("ghost exited with status 127") >= 2)
        assert "ghost | cannot run /nowhere/to/be/found" in on.logged
        assert on.end() == 0


def test_sighup_reaches_processes_that_reload(tmp_path: Path) -> None:
    with stage("calm", tmp_path) as on:
        on.until_ready()
        on.popen.send_signal(signal.SIGHUP)
        on.until(lambda: "front reloads" in on.diary)
        assert on.end() == 0
        assert "back reloads" not in on.diary


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_it_can_be_ended_at_any_moment_of_the_start(tmp_path: Path, delay: float) -> None:
    with stage("calm", tmp_path) as on:
        on.until(lambda: "back" in on.logged or on.pids or children_of(on.popen.pid))
        time.sleep(delay)
        assert on.end() == 0
