"""Under `python -O`, tests and their helpers keep their asserts, product code loses its own, and access control still
works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.planted import insist

ROOT = Path(__file__).parents[2]
IS_OPTIMISED = bool(sys.flags.optimize)
SHORT = (
    "tests/security/test_optimised.py",
    "tests/router/keys/test_key_file.py",
    "tests/router/http/test_same_origin.py",
    "tests/octet/rpc/test_memory_guard.py",
    "tests/octet/rpc/test_request_reading.py",
    "tests/kvpool/test_check.py",
    "tests/admission/test_circuit_breaker.py",
)
PLANTED = """
import product

def test_an_assert_of_a_test_stays():
    assert product.checked(0) == 1

def test_an_assert_of_the_product_goes():
    assert product.checked(0) == 0
"""


def optimised(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.optimised", "-p", "no:cacheprovider", *arguments]
    ignored = ["-W", "ignore::pytest.PytestConfigWarning"]
    environment = {**os.environ, "PYTHONOPTIMIZE": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    return subprocess.run([*command, *ignored], cwd=folder, env=environment, capture_output=True, text=True)


def test_an_assert_of_a_helper_stays() -> None:
    with pytest.raises(AssertionError):
        insist(0)


def test_tests_keep_their_asserts_and_the_product_loses_them(tmp_path: Path) -> None:
    (tmp_path / "product.py").write_text("def checked(value):\n    assert value\n    return value\n")
    (tmp_path / "test_planted.py").write_text(PLANTED)
    ended = optimised("test_planted.py", folder=tmp_path)
    assert "1 failed, 1 passed" in ended.stdout
    assert "FAILED test_planted.py::test_an_assert_of_a_test_stays" in ended.stdout


def test_processes_of_an_optimised_suite_are_optimised_too() -> None:
    script = "import sys; print(sys.flags.optimize)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert int(result) == sys.flags.optimize


if not IS_OPTIMISED:  # In an optimised run, this test would start itself again.

    @pytest.mark.slow
    def test_access_control_works_without_asserts() -> None:
        """This test runs a few test files under `python -O`; `make optimised` runs the whole suite."""
        ended = optimised("-x", *SHORT)
        assert ended.returncode == 0, ended.stdout[-3000:]
        assert " passed" in ended.stdout
