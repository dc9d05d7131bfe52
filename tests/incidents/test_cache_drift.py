"""Long prompts that nobody will ever ask again take the room of conversations that go on."""

from pathlib import Path

from octet.v1 import specialist_pb2 as replica
from specialist.engines.sim.engine import CostModel
from tests.incidents.ensembles import TEMPLATE, trades
from tests.incidents.scene import rehearsal
from tests.incidents.traffic import Traffic
from tests.incidents.waiting import until

BY_TOKEN = CostModel(0.001, 0.0002, 0.0, 0.003, 0.00002, 0.0, 0.0, 0.0)
"""What is not found in the cache takes its time."""
LONG = "We speak of a large code base with many a template in it. " * 10


def talk(number: int) -> str:
    """One of three conversations goes on."""
    return f"Talk {number % 3}. {LONG} And now? ({number})"


def unlike(number: int) -> str:
    return f"{number} {number} {number} template. " * 40


async def test_cache_drift(tmp_path: Path) -> None:
    crew = trades(cost=BY_TOKEN, num_blocks=240, max_running=4)
    async with rehearsal(tmp_path, crew, "cache-drift", hurry=250) as scene:
        people = Traffic(scene, talk, 3, 0.1, {"intent": "template", "priority": 6, "session_id": "talk"})
        batch = Traffic(scene, unlike, 6, 0.0, {"intent": "batch", "priority": 2})

        async def usual() -> bool:
            view = await scene.view(TEMPLATE)
            return view.HasField("usual_cache_reuse") and view.usual_cache_reuse > 0.8

        async with people.running():
            await until(usual)
            before, slo = scene.load(TEMPLATE), await scene.slo(TEMPLATE)
            async with batch.running():
                assert "cache" in (await scene.see("cache_drift", TEMPLATE)).text
                assert "runbook: cache-drift" in await scene.top()
                view = await scene.view(TEMPLATE)
                assert view.cache_reuse < 0.5 * view.usual_cache_reuse
                assert (await scene.slo(TEMPLATE)).ttft.p50 > slo.ttft.p50
                assert scene.load(TEMPLATE).evicted_blocks > before.evicted_blocks + 100
                evicted = await until(lambda: people.missed(replica.MISS_REASON_EVICTED))
                told = await scene.look(evicted[-1])
                assert evicted[-1] in told["octet receipts --specialist template"]
                (why,) = [said for line, said in told.items() if line.startswith("octet why")]
                assert "(evicted)" in why

                await scene.command("knobs set batch.priority_floor")
                await scene.over("cache_drift", subject=TEMPLATE)
            await scene.command("knobs release batch.priority_floor")
