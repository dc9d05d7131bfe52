"""Conversations and commands with a real router and replicas."""

import asyncio
import json
import sys
from typing import Any

from octet import AsyncClient
from tests.octet.cli.chat.terminal import ROOT
from tests.router.serving.harness import running_router
from tests.specialist.server.harness import running_replica, sim


async def octet(address: str, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Run the command. Return its exit status and its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octet.cli", *arguments, "--address", address),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(typed.encode())
    assert process.returncode is not None
    return process.returncode, out.decode()


async def test_a_conversation_stays_on_its_replica_and_is_computed_once() -> None:
    """One turn's stream is closed early. The next turn still goes to the same replica and hits its cache."""
    long: dict[str, Any] = {"context": 4096, "num_blocks": 600}
    async with (
        running_replica(sim(**long)) as one,
        running_replica(sim(**long)) as two,
        running_router({"writer": [one.address, two.address]}) as routed,
        AsyncClient(routed.address) as client,
    ):
        talk = client.conversation(system="say it in a few words", force="writer", max_tokens=24)
        answers = [await talk.send(f"and what is number {turn} of all these things?") for turn in range(3)]
        async with talk.stream("this one is left early") as left:
            async for _ in left:
                break
        assert talk.num_turns == 3
        answers.append(await talk.send("and what is the last of them?"))
        assert len({answer.receipt.replica for answer in answers}) == 1
        usages = [answer.receipt.usage for answer in answers]
        assert all(usage is not None and usage.cache_hit_tokens > 0 for usage in usages[1:])
        assert {answer.receipt.session_id for answer in answers} == {talk.session_id}

        status, output = await octet(routed.address, "chat", "--force", "writer", "--json", typed="one\nand two\n")
        receipts = [event["receipt"] for event in map(json.loads, output.splitlines()) if "receipt" in event]
        assert status == 0 and [receipt["specialist"] for receipt in receipts] == ["writer"] * 2
        assert receipts[0]["replica"] == receipts[1]["replica"]
        assert receipts[1]["usage"]["cache_hit_tokens"] > 0


async def test_a_job_from_the_command_line_to_its_end() -> None:
    async with running_replica(sim()) as replica, running_router({"writer": [replica.address]}) as routed:
        at = routed.address
        ask = ("jobs", "submit", "why?", "--force", "writer", "--max-tokens", "8", "--ignore-eos")
        status, job_id = await octet(at, *ask)
        assert status == 0
        (waited, text), (got, document) = await asyncio.gather(
            octet(at, "jobs", "wait", job_id.strip()), octet(at, "jobs", "get", job_id.strip(), "--json")
        )
        assert (waited, got) == (0, 0) and json.loads(document)["id"] == job_id.strip()
        assert await octet(at, "jobs", "watch", job_id.strip()) == (0, text)
        status, listed = await octet(at, "jobs", "list", "--json")
        assert [each["status"] for each in json.loads(listed)["jobs"]] == ["done"]
