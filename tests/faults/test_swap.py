"""Row 20 of docs/reliability.md: an adapter name gets new weights every two seconds under load."""

import asyncio
import time
from itertools import cycle
from pathlib import Path
from random import Random

import pytest

from octet.client.replica import SpecialistClient
from tests.faults.callers import LONGEST, PROMPTS, RouterClient, connected_client
from tests.faults.figures import Figure
from tests.faults.history import Account, Golden, Question, violations
from tests.faults.site import Plan, Replica, Site, site
from tests.faults.verdict import put_verdict_of
from tests.specialist.server.harness import adapter_directory

NUM_CONTENTS = 3


@pytest.mark.slow
def test_20_every_answer_matches_the_digest_on_its_receipt(long: bool, tmp_path: Path, figure: Figure) -> None:
    for number in range(NUM_CONTENTS):
        adapter_directory(tmp_path, f"content-{number}", f"weights {number}".encode())

    async def scenario(site: Site) -> None:
        async with connected_client(site.address) as router:
            golden = await _golden(site, router)
            accounts: list[Account] = []
            ended = asyncio.Event()
            asking = [asyncio.create_task(_ask(router, accounts, ended, number)) for number in range(8)]
            swaps = await _swap(site, 300.0 if long else 5.0)
            ended.set()
            await asyncio.gather(*asking)
            wrong = [found for each in accounts for found in violations(each, _golden_of(each, golden))]
            told_wrong = {found.request_id for found in wrong if found.kind == "tokens"}
            figure(20, "swaps", swaps, "swaps", "> 0")
            figure(20, "digests that answered", len({_digest(each) for each in accounts}), "digests", ">= 2")
            figure(20, "answers from a digest other than the receipt's", len(told_wrong), "answers", "== 0")
            failed = [each for each in accounts if not each.is_answered]
            figure(20, "failed requests", len(failed), "requests", "== 0")
            await put_verdict_of(20, router, accounts, wrong, figure)

    with site(Plan({"writer": 2}, options=("--adapter-root", str(tmp_path)))) as made:
        asyncio.run(scenario(made))


async def _golden(site: Site, router: RouterClient) -> Golden:
    """Return the answers by adapter digest and prompt. They are computed before any swap, with one adapter at a
    time."""
    found = {}
    for number in range(NUM_CONTENTS):
        await _load(site.replicas, number)
        for prompt in PROMPTS:
            account = await router.ask(Question("writer", prompt, LONGEST), adapters=["style"])
            assert account.is_answered
            found[_digest(account), prompt] = tuple(account.tokens)
    assert len(set(found.values())) == NUM_CONTENTS * len(PROMPTS), (
        "equal answers would not show which weights answered"
    )
    return found


async def _load(replicas: tuple[Replica, ...], number: int) -> None:
    for replica in replicas:
        async with SpecialistClient(replica.address) as client:
            await client.load_adapter("style", f"content-{number}")


async def _swap(site: Site, seconds: float) -> int:
    end, swaps = time.monotonic() + seconds, 0
    for number in cycle(range(NUM_CONTENTS)):
        await _load(site.replicas, number)
        swaps += 1
        await asyncio.sleep(2.0 if seconds > 60 else 0.5)
        if time.monotonic() > end:
            break
    return swaps


async def _ask(router: RouterClient, accounts: list[Account], ended: asyncio.Event, seed: int) -> None:
    random = Random(seed)
    while not ended.is_set():
        question = Question("writer", random.choice(PROMPTS), random.randint(1, LONGEST))
        accounts.append(await router.ask(question, adapters=["style"]))
        await asyncio.sleep(0.02)


def _digest(account: Account) -> str:
    assert account.receipt is not None
    (digest,) = account.receipt.lane.adapter_digests
    return str(digest)


def _golden_of(account: Account, golden: Golden) -> Golden:
    """Return the expected answer with the weights that the receipt names."""
    prompt = account.question.prompt
    return {("writer", prompt): golden[_digest(account), prompt]}
