"""Conversations and commands with a real router and replicas."""

import asyncio
import json
import sys
from typing import Any

import pytest

from octet import AsyncClient
from octet.cli.receipts import describe_cut
from octet.client.receipts import Receipt
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2
from tests.octet.cli.chat.terminal import ROOT
from tests.router.serving.harness import running_router
from tests.specialist.server.harness import running_replica, sim


async def octet(address: str, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Run the command. Return its exit status and its output."""
    status, out, _ = await octet_with_errors(address, *arguments, typed=typed)
    return status, out


async def octet_with_errors(address: str, *arguments: str, typed: str = "") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octet.cli", *arguments, "--address", address),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(typed.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


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


async def test_cut_answers_are_reported_with_their_limit() -> None:
    """Standard output holds only the answer. The line on standard error names the limit and what raises it."""
    ask = ("--force", "writer", "--ignore-eos")
    async with running_replica(sim(context=64)) as replica, running_router({"writer": [replica.address]}) as routed:
        at = routed.address
        _, job_id = await octet(at, "jobs", "submit", "why?", *ask, "--max-tokens", "5")
        by_caller, by_context, chat, job, shown, whole = await asyncio.gather(
            octet_with_errors(at, "generate", "why?", *ask, "--max-tokens", "4"),
            octet_with_errors(at, "generate", "why?", *ask),
            octet_with_errors(at, "chat", *ask, "--max-tokens", "3", typed="why?\n"),
            octet_with_errors(at, "jobs", "watch", job_id.strip()),
            octet_with_errors(at, "jobs", "wait", job_id.strip()),
            octet_with_errors(at, "generate", "why?", "--force", "writer", "--choice", "yes"),
        )
        raises = "; --max-tokens N raises it."
        assert by_caller[2] == f"The answer was cut at its length: max_tokens 4 from the caller{raises}\n"
        assert "cut" not in by_caller[1] and by_caller[0] == 0
        assert by_context[2].startswith("The answer was cut at its length: the context leaves room for ")
        assert "max_tokens 3 from the caller" in chat[2] and "max_tokens 5 from the caller" in job[2]
        assert "max_tokens 5 from the caller" in shown[2] and "cut" not in job[1] + chat[1]
        assert whole == (0, "yes\n", "")
        _, document = await octet(at, "jobs", "get", job_id.strip())
        assert f"cut         The answer was cut at its length: max_tokens 5 from the caller{raises}" in document


@pytest.mark.parametrize(
    ("max_tokens_from", "specialist", "most", "says"),
    [
        ("caller", "stl", 90, "max_tokens 90 from the caller; --max-tokens N raises it."),
        ("task", "stl", 90, "from the task debug; --max-tokens N, or max_tokens of the task debug in the config"),
        ("specialist", "stl", 90, "from the specialist stl; --max-tokens N, or max_tokens of the specialist stl in"),
        ("caller", "stl", 89, "the context leaves room for 89 tokens after 7 of the prompt; a shorter prompt"),
        ("caller", "build", 89, "max_tokens or context of the specialist build, which answered instead: 89 tokens"),
    ],
)
def test_the_limit_that_cut_an_answer_is_named(max_tokens_from: str, specialist: str, most: int, says: str) -> None:
    decision = wire.Decision(primary="stl", task="debug", max_tokens=90, max_tokens_from=max_tokens_from)
    receipt = wire.Receipt(specialist=specialist, decision=decision)
    receipt.accepted.max_tokens = most
    receipt.usage.MergeFrom(specialist_pb2.Usage(prompt_tokens=7, finish_reason=specialist_pb2.FINISH_REASON_LENGTH))
    assert says in describe_cut(Receipt.from_wire(receipt))
    receipt.usage.finish_reason = specialist_pb2.FINISH_REASON_STOP
    assert describe_cut(Receipt.from_wire(receipt)) == ""
