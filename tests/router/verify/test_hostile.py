"""Hostile sources get a verdict within their limits, and no verdict contains the content of other files."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.router.verify.conftest import all_judged, judged, make_cpp
from tests.router.verify.hostile import COMMON, FAILS, PASSES

SECRETS = [line for line in Path("/etc/passwd").read_text().splitlines() if line]


def fenced(source: str) -> str:
    return f"```cpp\n{source}\n```\n"


SOURCES = {**FAILS, **PASSES}


def check(driver: str, names: Iterable[str]) -> None:
    before = set(Path(tempfile.gettempdir()).iterdir())
    verdicts = all_judged(make_cpp(driver, cpu_seconds=1), [fenced(SOURCES[name]) for name in names])
    for name, verdict in zip(names, verdicts, strict=True):
        assert verdict.outcome == ("failed" if name in FAILS else "passed"), (name, verdict)
        assert len(verdict.why) <= 300
        assert not any(secret in verdict.why for secret in SECRETS)
        assert "/etc/" not in verdict.why and "/proc/" not in verdict.why
    assert not [path for path in set(Path(tempfile.gettempdir()).iterdir()) - before if path.name.startswith("cc")]


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
