"""Every command in docs/operating.md works, in the order of the page."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest
from grpc import aio

from admission.breakers import CircuitBreaker
from octet.cli import main
from octet.clock import SystemClock
from router.dispatch.replicas.replica import Replica
from router.dispatch.transport import ReplicaTarget
from tests.router.operator.harness import running_operator
from tests.test_docs import ROOT, example_in, run_example

DOCUMENT = (ROOT / "docs" / "operating.md").read_text()
COMMANDS = [line[2:] for block in re.findall(r"```console\n(.*?)```", DOCUMENT, re.S) for line in block.splitlines()]


REPLICAS = ("stl-0", "template-0", "template-1", "debug-0")
"""Replica names in the form in which a router assigns them."""


def test_every_documented_command_works(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(COMMANDS) > 20
    monkeypatch.setattr("tests.router.operator.fake_control.REPLICAS", REPLICAS)
    with running_operator() as at:
        for command in COMMANDS:
            name, *arguments = shlex.split(command)
            assert name == "octet"
            assert main([*arguments, "--address", at.address]) == 0, command
            output = capsys.readouterr()
            assert output.err == "" and (output.out or "events" in command)
        reasons = [entry.why for entry in at.control.entries]
    assert reasons[:2] == ["bad refresh", "the old weights are back"]


def test_required_commands_are_documented() -> None:
    for verb in ("breakers", "breaker hold", "knobs set", "adapters load", "adapters promote", "adapters rollback",
                 "shadow report", "router tune", "audit"):  # fmt: skip
        assert any(command.startswith(f"octet {verb}") for command in COMMANDS), verb


def test_documented_replica_names_match_the_router() -> None:
    async def named() -> str:
        async with aio.insecure_channel("unix:/nowhere") as channel:
            clock, target = SystemClock(), ReplicaTarget(str(1), "unix:/nowhere")
            breaker = CircuitBreaker(clock, failures=1, cool_down=1.0, max_cool_down=1.0)
            return Replica("template", target, channel, breaker, clock, 1).name

    name = asyncio.run(named())
    assert f"octet drain {name} " in DOCUMENT and f"octet undrain {name}\n" in DOCUMENT


def test_the_example_runs(tmp_path: Path) -> None:
    with running_operator() as at:
        shown = run_example(example_in("docs/operating.md").replace("localhost:50051", at.address), tmp_path)
        assert [entry.who for entry in at.control.entries] == ["deploy-bot", "deploy-bot"]
    assert shown == "stl closed sound\ntemplate closed sound\ndebug closed sound\n"
