"""Long prompts that are never repeated evict the cached blocks of active conversations."""

from pathlib import Path

from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2 as replica
from specialist.engines.sim.engine import CostModel
from tests.incidents.ensembles import TEMPLATE, make_specialists
from tests.incidents.rehearsal import rehearse
from tests.incidents.traffic import Traffic
from tests.incidents.waiting import until

BY_TOKEN = CostModel(0.001, 0.0002, 0.0, 0.003, 0.00002, 0.0, 0.0, 0.0)
"""Costs with which every uncached prompt token takes time."""
LONG = "We speak of a large code base with many a template in it. " * 10


def talk(number: int) -> str:
    """Return the next prompt of one of three conversations, in turn."""
    return f"Talk {number % 3}. {LONG} And now? ({number})"


def unlike(number: int) -> str:
    return f"{number} {number} {number} template. " * 40


async def test_cache_drift(tmp_path: Path) -> None:
    specialists = make_specialists(cost=BY_TOKEN, num_blocks=240, max_running=4)
    async with rehearse(tmp_path, specialists, "cache-drift", speed=250) as rehearsal:
        callers = Traffic(rehearsal, talk, 3, 0.1, {"intent": "template", "priority": 6, "session_id": "talk"})
        batch = Traffic(rehearsal, unlike, 6, 0.0, {"intent": "batch", "priority": 2})

        async def usual() -> bool:
            view = await rehearsal.view(TEMPLATE)
            return view.HasField("usual_cache_reuse") and view.usual_cache_reuse > 0.8

        async def less_than_half() -> bool:
            view = await rehearsal.view(TEMPLATE)
            return bool(view.cache_reuse < 0.5 * view.usual_cache_reuse)

        async def measured() -> wire.Slo | None:
            slo = await rehearsal.slo(TEMPLATE)
            return slo if slo.ttft.samples >= 5 else None

        async def slower() -> bool:
            found = await measured()
            return found is not None and found.ttft.p50 > 1.5 * slo.ttft.p50

        async with callers.running():
            await until(usual)
            before, slo = rehearsal.load(TEMPLATE), await until(measured)
            async with batch.running():
                assert "cache" in (await rehearsal.until_shown("cache_drift", TEMPLATE)).text
                assert "runbook: cache-drift" in await rehearsal.top()
                await until(less_than_half)
                await until(slower)
                assert rehearsal.load(TEMPLATE).evicted_blocks > before.evicted_blocks + 100
                evicted = await until(lambda: callers.missed(replica.MISS_REASON_EVICTED))
                shown = await rehearsal.look(evicted[-1])
                assert evicted[-1] in shown["octet receipts --specialist template"]
                (why,) = [said for line, said in shown.items() if line.startswith("octet why")]
                assert "(evicted)" in why

                await rehearsal.command("knobs set batch.priority_floor")
                await rehearsal.until_gone("cache_drift", subject=TEMPLATE)
            await rehearsal.command("knobs release batch.priority_floor")
