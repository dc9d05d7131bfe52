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

from tests.octet.supervise.plays import NUM_SHOUTERS, NUM_SHOUTS

ROOT = Path(__file__).parents[3]


class Stage:
    """A supervisor under way, what it writes, and what its children have noted."""

    def __init__(self, play: str, folder: Path) -> None:
        self._diary = folder / "diary"
        self._said = folder / "said"
        self._logged = folder / "logged"
        with self._said.open("w") as said, self._logged.open("w") as logged:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tests.octet.supervise.plays", play, str(folder)],
                cwd=ROOT,
                stdout=said,
                stderr=logged,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    @property
    def logged(self) -> str:
        return self._logged.read_text()

    @property
    def diary(self) -> list[str]:
        return self._diary.read_text().splitlines() if self._diary.exists() else []

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self.said.partition("pids: ")[2].split()]

    def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"said {self.said!r}, logged {self.logged!r}, diary {self.diary}"
            time.sleep(0.01)

    def until_ready(self) -> None:
        self.until(lambda: "pids: " in self.said and self.said.endswith("\n"))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(15)


@contextmanager
def stage(play: str, folder: Path) -> Iterator[Stage]:
    """Nobody outlives it."""
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


def test_stages_begin_from_below_and_end_from_above(tmp_path: Path) -> None:
    with stage("drain", tmp_path) as on:
        on.until_ready()
        assert on.said.startswith("all ready: back in costume, front in costume\n")
        assert on.end() == 0
        assert on.diary == [
            "back ready",
            "front ready",
            "front told to end",
            "front ended",
            "back told to end",
            "back ended",
        ]
        assert not any(map(is_alive, on.pids))


def test_progress_is_shown_and_lines_have_names(tmp_path: Path) -> None:
    with stage("calm", tmp_path) as on:
        on.until_ready()
        lines = on.logged.splitlines()
        assert lines[0] == "back  | rehearsing ..."
        assert re.fullmatch(rf"back  \| ready after 0\.[3-9] s, pid {on.pids[1]}", lines[1])
        assert lines[2] == "front | rehearsing ..."


def test_a_child_that_dies_is_brought_back_until_it_lives(tmp_path: Path) -> None:
    with stage("dying", tmp_path) as on:
        on.until_ready()
        assert on.diary.count("phoenix born") == 6
        assert on.logged.count("phoenix was killed by SIGKILL") == 5
        assert "the 5th time in a row; it starts again in" in on.logged
        assert on.logged.count("phoenix | ashes\n") == 5, "the last words count, whole line or not"
        victim = on.pids[0]
        os.kill(victim, signal.SIGKILL)
        on.until(lambda: on.diary.count("phoenix ready") == 2)
        assert f" s (pid {victim})" in on.logged
        assert on.said.count("all ready") == 1
        assert on.end() == 0


def test_what_can_never_run_ends_everything_and_says_why(tmp_path: Path) -> None:
    with stage("wrong", tmp_path) as on:
        assert on.popen.wait(15) == 2
        assert on.logged.endswith("wrong cannot be started, so nothing is: block_size must be in [1, 1024], got 0\n")
        assert on.said == ""


def test_only_a_first_start_ends_everything_and_a_broken_one_holds_up_nobody(tmp_path: Path) -> None:
    with stage("wrong later", tmp_path) as on:
        on.until_ready()
        assert on.diary.count("wrong born") == 3
        assert "front ready" in on.diary
        assert on.end() == 0


def test_a_silent_child_is_killed_and_replaced(tmp_path: Path) -> None:
    with stage("stuck", tmp_path) as on:
        on.until(lambda: "stuck ready" in on.diary)
        assert "stuck has given no sign of life for 0.5 s and is killed" in on.logged
        time.sleep(0.8)
        assert on.diary.count("stuck born") == 2, "one that gives signs of life is left alone"
        assert on.end() == 0


def test_a_child_that_hangs_before_its_first_sign_of_life_holds_up_nobody_for_good(tmp_path: Path) -> None:
    with stage("speechless", tmp_path) as on:
        on.until_ready()
        assert on.logged.count("has given no sign of life for 0.4 s and is killed") == 1
        assert on.diary.count("speechless born") == 2, "progress is a sign of life"
        time.sleep(0.6)
        assert on.said.startswith("all ready: speechless in costume, that is all, front in costume\n")
        assert "silent was" not in on.logged, "who is ready and gives no signs of life is left alone"
        assert on.end() == 0


def test_each_has_a_name_among_the_processes(tmp_path: Path) -> None:
    with stage("calm", tmp_path) as on:
        on.until_ready()
        names = [Path(f"/proc/{pid}/comm").read_text() for pid in on.pids]
        assert names == ["octet:front\n", "octet:back\n"]


def test_whoever_does_not_read_stops_nobody(tmp_path: Path) -> None:
    """As in `octet serve 2>&1 | less`, or after Ctrl-S: the pipe is full, and those in care are cared for."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(writing, b"." * 4096)
    os.set_blocking(writing, True)
    command = [sys.executable, "-m", "tests.octet.supervise.plays", "chatty", str(tmp_path)]
    popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=writing, start_new_session=True)
    os.close(writing)
    try:
        diary = tmp_path / "diary"
        patiently(lambda: diary.exists() and diary.read_text().count("chatty born") == 4)
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(15) == 0
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


def test_a_stopped_child_is_killed_and_replaced(tmp_path: Path) -> None:
    with stage("stuck", tmp_path) as on:
        on.until(lambda: "stuck ready" in on.diary)
        second = next(pid for pid in children_of(on.popen.pid))
        os.kill(second, signal.SIGSTOP)
        on.until(lambda: on.diary.count("stuck ready") == 2)
        assert not is_alive(second)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_whoever_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    with stage("stubborn", tmp_path) as on:
        on.until_ready()
        assert on.end() == 1
        assert "stubborn has not ended within 0.4 s and is killed" in on.logged
        assert "back ended" in on.diary
        assert not any(map(is_alive, on.pids))


def test_the_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    with stage("stubborn and slow", tmp_path) as on:
        on.until_ready()
        os.killpg(on.popen.pid, signal.SIGINT)
        on.until(lambda: "front ended" in on.diary)
        on.popen.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert on.popen.poll() is None, "what runs is finished first"
        os.killpg(on.popen.pid, signal.SIGINT)
        assert on.popen.wait(5) == 130
        assert not any(map(is_alive, on.pids))


def test_a_supervisor_that_is_killed_leaves_no_orphans(tmp_path: Path) -> None:
    for play in ("stubborn and slow", "programs"):
        folder = tmp_path / play
        folder.mkdir()
        with stage(play, folder) as on:
            on.until_ready()
            assert len(on.pids) == 2 and all(map(is_alive, on.pids))
            on.popen.kill()
            on.popen.wait()
            on.until(lambda on=on: not any(map(is_alive, on.pids)), 2)  # type: ignore[misc]


def test_nothing_is_lost_when_many_write_at_once(tmp_path: Path) -> None:
    with stage("shouting", tmp_path) as on:
        on.until_ready()
        assert on.end() == 0
        lines: dict[str, list[str]] = {f"s{i}": [] for i in range(NUM_SHOUTERS)}
        for line in on.logged.splitlines():
            name, bar, text = line.partition(" | ")
            if bar and text != "ready after" and not text.startswith("ready after"):
                lines[name].append(text)
        for i, heard in enumerate(lines.values()):
            shouts = [f"{i} shouts {shout} {'é' * (shout % 50)}" for shout in range(NUM_SHOUTS)]
            assert heard[:NUM_SHOUTS] == shouts
            assert "".join(heard[NUM_SHOUTS:-1]) == "ß" * 10_000
            assert all(len(line.encode()) <= 8192 for line in heard)
            assert heard[-1] == "unfinished"


def test_programs_tell_that_they_are_ready_or_are_overheard(tmp_path: Path) -> None:
    with stage("programs", tmp_path) as on:
        on.until_ready()
        assert on.said.startswith("all ready: told, a program ready on stage\n")
        assert on.end() == 0, "they have no handler and simply go"


def test_a_program_that_is_not_there_is_told_of_again_and_again(tmp_path: Path) -> None:
    with stage("no such program", tmp_path) as on:
        on.until(lambda: on.logged.count("ghost ended with status 127") >= 2)
        assert "ghost | /nowhere/to/be/found cannot be run" in on.logged
        assert on.end() == 0


def test_sighup_reaches_those_who_reload(tmp_path: Path) -> None:
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
