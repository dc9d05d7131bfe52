"""A specialist in its own process, and the signals that end it."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.patience import PATIENCE
from tests.specialist.server.test_operate import SERVING, health_of

ROOT = Path(__file__).parents[3]
OCTET = """
import argparse, sys
parser = argparse.ArgumentParser(prog="octet")
commands = parser.add_subparsers(required=True)
if sys.argv[1] == "generate":
    from octet.cli.requests import add_generate_command as add
else:
    from octet.cli.specialist import add_specialist_command as add
add(commands)
arguments = parser.parse_args()
sys.exit(arguments.run(arguments))
"""


class Process:
    def __init__(self, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", OCTET, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def stdout(self) -> IO[str]:
        if self.popen.stdout is None:
            raise RuntimeError("no pipe")
        return self.popen.stdout

    def rest(self) -> tuple[int, str, str]:
        out = self.stdout.read()  # `communicate` would miss what the text layer has already buffered.
        _, err = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, out, err


@contextmanager
def specialist() -> Iterator[tuple[Process, str]]:
    """Start a specialist. Yield its process and its ready line."""
    process = Process("specialist", "--engine", "sim", "--port", "0", "--name", "writer", "--kv-blocks", "256")
    try:
        yield process, process.stdout.readline()
    finally:
        process.popen.kill()
        process.popen.communicate()


def address_of(ready_line: str) -> str:
    return ready_line.split(" ready on ")[1].split()[0]


def start_generate(ready_line: str, num_tokens: int) -> Process:
    return Process(
        "generate", "hello", "--replica", address_of(ready_line), "--max-tokens", str(num_tokens), "--ignore-eos"
    )


def test_process_reports_ready_survives_a_caller_and_ends_cleanly() -> None:
    with specialist() as (replica, ready_line):
        assert ready_line.startswith("octet specialist writer ready on 127.0.0.1:")
        assert "model sim" in ready_line and "256 blocks of 16" in ready_line
        interrupted = start_generate(ready_line, 4000)
        interrupted.stdout.read(5)
        interrupted.popen.send_signal(signal.SIGINT)
        status, _, said = interrupted.rest()
        assert (status, said) == (130, "")
        status, undisturbed, _ = start_generate(ready_line, 150).rest()
        assert status == 0
        caller = start_generate(ready_line, 150)
        begin = caller.stdout.read(3)
        replica.popen.send_signal(signal.SIGTERM)
        status, rest, _ = caller.rest()
        assert (status, begin + rest) == (0, undisturbed)
        assert replica.popen.wait(timeout=PATIENCE) == 0


def test_the_second_interrupt_does_not_wait() -> None:
    with specialist() as (replica, ready_line):
        caller = start_generate(ready_line, 4000)
        caller.stdout.read(3)
        replica.popen.send_signal(signal.SIGINT)
        port = int(address_of(ready_line).rpartition(":")[2])
        while asyncio.run(health_of(port)) == SERVING:
            time.sleep(0.01)
        assert replica.popen.poll() is None, "a running request must be finished first"
        replica.popen.send_signal(signal.SIGINT)
        assert replica.popen.wait(timeout=PATIENCE) == 130
        assert caller.rest()[0] == 3
