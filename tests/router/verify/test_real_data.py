"""Solutions that are known to compile pass, and programs with known errors fail."""

from pathlib import Path

import pytest

from tests.router.verify.conftest import all_judged, make_cpp
from tests.router.verify.real_data import drrepair, humaneval

NEED_BOOST = {"CPP/22", "CPP/137"}


def fenced(code: str) -> str:
    return f"Here it is:\n```cpp\n{code}\n```\n"


def humaneval_failures(folder: Path, step: int) -> dict[str, str]:
    rows = [row for row in humaneval(folder)[::step] if row["task_id"] not in NEED_BOOST]
    verdicts = all_judged(make_cpp("clang++"), [fenced(row["prompt"] + row["canonical_solution"]) for row in rows])
    return {row["task_id"]: v.why for row, v in zip(rows, verdicts, strict=True) if v.outcome != "passed"}


def drrepair_rates(folder: Path, step: int) -> tuple[float, float]:
    """Return the share of broken programs that fail, and of fixed ones that pass."""
    pairs = list(drrepair(folder))[::step]
    broken = all_judged(make_cpp("clang++"), [fenced(one) for one, _ in pairs])
    mended = all_judged(make_cpp("clang++"), [fenced(one) for _, one in pairs])
    failed = sum(verdict.outcome == "failed" for verdict in broken)
    passed = sum(verdict.outcome == "passed" for verdict in mended)
    return failed / len(pairs), passed / len(pairs)


def test_known_solutions_pass(shared_data: Path) -> None:
    assert humaneval_failures(shared_data, 40) == {}


def test_known_errors_fail(shared_data: Path) -> None:
    failed, passed = drrepair_rates(shared_data, 400)
    assert failed == 1.0
    assert passed == 1.0


@pytest.mark.slow
def test_all_known_solutions_pass(shared_data: Path) -> None:
    assert humaneval_failures(shared_data, 1) == {}


@pytest.mark.slow
def test_many_known_errors_fail(shared_data: Path) -> None:
    failed, passed = drrepair_rates(shared_data, 20)
    assert failed >= 0.98
    assert passed >= 0.95
