"""The time to the first token does not reveal whether another tenant has used a prompt."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from router.api.keys.key_file import StaticKeys
from specialist.engines.sim.engine import CostModel
from tests.router.keys.keyed import IssuedKey, issue_key, key_set
from tests.router.serving.harness import RouterHarness, infer_request, running_router
from tests.specialist.server.harness import running_replica, sim

COST = CostModel(0.0002, 0.00007, 0.0, 0.0002, 0.0, 0.0, 0.0, 0.0)
"""Costs with which an uncached prompt takes about fifteen milliseconds longer, in simulated time."""
LANES = ("one", "two", "three", "four")
NUM_CONTROLS = 120
PROMPT = 220


class FirstToken(NamedTuple):
    """The measurements of one probe."""

    seen: float
    """Seconds measured by the caller, with network noise."""
    reported: float
    """Seconds from admission to the first token, from the receipt. They contain no network noise."""
    found: int
    """Cached prompt tokens in the receipt."""


@dataclass
class Probes:
    """Probes of prompts that the victim has used, and of prompts that it has not used."""

    used: list[FirstToken] = field(default_factory=list)
    unused: list[FirstToken] = field(default_factory=list)

    @property
    def most_found(self) -> int:
        return max(each.found for each in (*self.used, *self.unused))

    @property
    def seen(self) -> float:
        return auc([each.seen for each in self.used], [each.seen for each in self.unused])

    @property
    def reported(self) -> float:
        return auc([each.reported for each in self.used], [each.reported for each in self.unused])

    def reveal(self, tolerance: float) -> bool:
        return max(abs(self.seen - 0.5), abs(self.reported - 0.5)) > tolerance


def auc(used: list[float], unused: list[float]) -> float:
    """Return the share of pairs in which the used prompt was faster than the unused one. A tie counts as half a pair. A
    share of 0.5 reveals nothing."""
    wins = sum((one < other) + 0.5 * (one == other) for one in used for other in unused)
    return wins / (len(used) * len(unused))


async def first_token(routed: RouterHarness, lane: str, prompt: str, key: IssuedKey) -> FirstToken:
    began = time.perf_counter()
    call = routed.generate(infer_request(prompt, lane, max_tokens=1, ignore_eos=True), metadata=key.metadata)
    seen: float | None = None
    async for event in call:
        if event.HasField("chunk") and seen is None:
            seen = time.perf_counter() - began
        elif event.HasField("receipt"):
            usage = event.receipt.usage
            assert seen is not None
            return FirstToken(seen, usage.timings.prefill, usage.cache_hit_tokens)
    raise AssertionError("it ended without a receipt")


async def probe_lane(
    routed: RouterHarness,
    lane: str,
    victim: IssuedKey,
    prober: IssuedKey,
    prompts: Sequence[str],
    dice: random.Random,
    probes: Probes,
) -> None:
    """Let the victim use a random half of the prompts, a few at a time, and let the prober send all of them in random
    order."""
    for start in range(0, len(prompts), 10):
        together = prompts[start : start + 10]
        used = set(dice.sample(together, len(together) // 2))
        for prompt in used:
            await first_token(routed, lane, prompt, victim)
        for prompt in dice.sample(together, len(together)):
            first = await first_token(routed, lane, prompt, prober)
            (probes.used if prompt in used else probes.unused).append(first)


async def probe(
    routed: RouterHarness, victim: IssuedKey, prober: IssuedKey, num_probes: int, probes: Probes, seed: int
) -> None:
    dice = random.Random(seed)
    prompts = ["".join(dice.choices("abcdefghij ", k=PROMPT)) for _ in range(num_probes)]
    await asyncio.gather(
        *(
            probe_lane(routed, lane, victim, prober, prompts[index :: len(LANES)], random.Random(seed + index), probes)
            for index, lane in enumerate(LANES)
        )
    )


@pytest.mark.parametrize(("num_probes", "tolerance"), [(200, 0.11), pytest.param(500, 0.07, marks=pytest.mark.slow)])
async def test_timing_reveals_nothing_about_another_tenants_prompt(num_probes: int, tolerance: float) -> None:
    """The `auc` of the probes must differ from 0.5 by at most the tolerance. If timing reveals nothing, it differs by
    more in only one of 150 runs. In that case, as many probes are sent again, and the `auc` of all of them must be
    within the tolerance."""
    victim, same, other = issue_key("victim", tenant="a"), issue_key("same", tenant="a"), issue_key("other", tenant="b")
    async with AsyncExitStack() as stack:
        replicas = {}
        for lane in LANES:
            build = sim(COST, name=lane, num_blocks=1024, context=512)
            replicas[lane] = [(await stack.enter_async_context(running_replica(build))).address]
        keys = StaticKeys(key_set(victim, same, other))
        routed = await stack.enter_async_context(running_router(replicas, keys=keys))
        control, apart = Probes(), Probes()
        await probe(routed, victim, same, len(LANES) * 10, Probes(), seed=0)  # Warm up.
        await probe(routed, victim, same, NUM_CONTROLS, control, seed=1)
        await probe(routed, victim, other, num_probes, apart, seed=22)
        if apart.reveal(tolerance):
            await probe(routed, victim, other, num_probes, apart, seed=23)
        print(
            f"AUC within a tenant {control.reported:.3f} (seen {control.seen:.3f}), across {apart.reported:.3f} "
            f"(seen {apart.seen:.3f}), {len(apart.used) + len(apart.unused)} probes"
        )
        assert control.most_found > PROMPT // 2
        assert control.reported > 0.9, "this machine is too busy for any difference to be measured"
        assert apart.most_found == 0 and not apart.reveal(tolerance)
