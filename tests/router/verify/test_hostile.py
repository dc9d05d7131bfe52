"""Hostile sources get a verdict within their limits, and no verdict contains the content of other files."""

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.router.verify.conftest import all_judged, judged, make_cpp
from tests.router.verify.hostile import COMMON, FAILS, PASSES

SECRETS = [line for line in Path("/etc/passwd").read_text().splitlines() if line]


def fenced(source: str) -> str:
    return f"```cpp\n{source}\n```\n"


SOURCES = {**FAILS, **PASSES}


def compiler_files() -> set[Path]:
    """Return the temporary files of all compilers on this machine."""
    return set(Path(tempfile.gettempdir()).glob("cc*"))


def check(driver: str, names: Iterable[str]) -> None:
    before = compiler_files()
    verdicts = all_judged(make_cpp(driver, cpu_seconds=1), [fenced(SOURCES[name]) for name in names])
    for name, verdict in zip(names, verdicts, strict=True):
        assert verdict.outcome == ("failed" if name in FAILS else "passed"), (name, verdict)
        assert len(verdict.why) <= 300
        assert not any(secret in verdict.why for secret in SECRETS)
        assert "/etc/" not in verdict.why and "/proc/" not in verdict.why
    new, end = compiler_files() - before, time.monotonic() + PATIENCE
    while left := new & compiler_files():  # those of other compilers go when these end
        assert time.monotonic() < end, left
        time.sleep(0.1)


def test_common_hostile_sources_get_their_verdicts() -> None:
    check("g++", COMMON)


@pytest.mark.slow
def test_all_hostile_sources_get_their_verdicts(driver: str) -> None:
    check(driver, list(SOURCES))


@pytest.mark.slow
def test_ten_megabytes_of_parentheses(driver: str) -> None:
    source = fenced("int x = " + "(" * 10_000_000)
    assert judged(make_cpp(driver, cpu_seconds=1), source).outcome == "failed"
    assert judged(make_cpp(driver, answer_bytes=128 << 10), source).outcome == "skipped"


def test_the_weaker_sandbox_leaks_as_little() -> None:
    names = ("another's file", "the environment", "an endless file", "by a macro", "a check that fails")
    verdicts = all_judged(make_cpp("clang++", "landlock", cpu_seconds=5), [fenced(FAILS[name]) for name in names])
    assert [verdict.outcome for verdict in verdicts] == ["failed"] * len(names)
    assert not any(secret in verdict.why for secret in SECRETS for verdict in verdicts)


def test_unusual_answers_are_skipped_or_fail() -> None:
    answers = ["\0", "\ud800", "```cpp\n\ud800\n```", "```cpp\n```", "```", "~~~cpp", "\x1b[31m", ""]
    assert {verdict.outcome for verdict in all_judged(make_cpp("clang++"), answers)} == {"skipped", "failed"}
