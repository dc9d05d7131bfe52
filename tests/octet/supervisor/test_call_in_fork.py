"""Functions that are called in a forked process."""

import subprocess
import sys

import pytest

from tests.patience import PATIENCE

SCRIPT = """
import os, sys, threading
from octet.supervisor.process import call_in_fork
here = os.getpid()
{body}
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.format(body=body)], capture_output=True, text=True, timeout=PATIENCE
    )


def test_fork_returns_only_the_result() -> None:
    done = run(
        "made = []\n"
        "def compute():\n"
        "    made.append(threading.Thread(target=print)); made[0].start()\n"
        "    return [os.getpid() != here, 'x' * 100_000]\n"
        "result = call_in_fork(compute)\n"
        "assert result == [True, 'x' * 100_000] and not made\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("call_in_fork(lambda: 1 / 0)", "ZeroDivisionError"),
        ("call_in_fork(lambda: os.kill(os.getpid(), 9))", "was killed by SIGKILL"),
        (
            "threading.Thread(target=threading.Event().wait, daemon=True, name='other').start(); call_in_fork(int)",
            "other",
        ),
    ],
)
def test_failures_are_reported(body: str, says: str) -> None:
    done = run(body)
    assert done.returncode == 1
    assert says in done.stderr
