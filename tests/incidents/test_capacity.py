"""More is asked of a specialist than it can do, while one of its replicas is out."""

import asyncio
from pathlib import Path

from specialist.engines.sim.engine import CostModel
from tests.incidents.ensembles import BUILD, TEMPLATE, asking_about, trades
from tests.incidents.scene import rehearsal
from tests.incidents.trades import Trade
from tests.incidents.traffic import Traffic
from tests.incidents.waiting import until

SLOW = CostModel(0.002, 0.00001, 0.0, 0.045, 0.00002, 0.0, 0.0, 0.0)
"""An answer takes half a second."""


def crowded() -> list[Trade]:
    """With two replicas there is room for all; with one there is not, and the fallback has none to spare."""
    _, debug, _ = trades()
    busy = Trade(BUILD, ("",), cost=SLOW, max_running=1, max_waiting=1)
    return [Trade(TEMPLATE, ("template",), replicas=2, cost=SLOW, max_running=8, max_waiting=6), debug, busy]


async def test_capacity(tmp_path: Path) -> None:
    async with rehearsal(tmp_path, crowded(), "capacity") as scene:
        await scene.drain("template-1")
        people = Traffic(scene, asking_about(TEMPLATE), 3, 0.1, {"intent": "template", "priority": 6})
        batch = Traffic(scene, asking_about(TEMPLATE), 15, 0.2, {"intent": "batch", "priority": 2})

        async def kept() -> bool:
            first = (await scene.slo(TEMPLATE)).admission_to_first_token
            return first.samples > 0 and first.p95 < 0.2

        async def spilled() -> bool:
            return " spilled" in (await scene.look())["octet receipts"]

        async with people.running(), batch.running():
            await scene.see("refusing", TEMPLATE)
            await scene.see("burning", TEMPLATE)
            await scene.tops("refusing", TEMPLATE)
            await until(scene.judged(TEMPLATE))
            slo = await scene.slo(TEMPLATE)
            while not slo.HasField("pass_rate"):  # service levels are up to half a second old
                await asyncio.sleep(0.05)
                slo = await scene.slo(TEMPLATE)
            (promise,) = [each for each in slo.objectives if each.name == "admission_to_first_token_p95"]
            assert not promise.met and promise.target == 0.2 and slo.admission_to_first_token.p95 > promise.target
            assert slo.pass_rate >= slo.floor, "they are right, and late"
            assert await scene.trouble("correctness", TEMPLATE) is None
            told = await scene.look()
            assert "drained_by_operator" in told["octet replicas"]
            (line,) = [line for line in told["octet slo template"].splitlines() if promise.name in line]
            assert " no " in line
            assert "refused: queue_full" in told["octet receipts --specialist template --outcome refused"]
            await until(spilled)

            await scene.command("knobs set batch.priority_floor")
            await scene.over("burning", subject=TEMPLATE)
            await until(kept)
            await scene.command("undrain template-1")
            await scene.command("knobs release batch.priority_floor")
            await scene.over("burning", "refusing", subject=TEMPLATE)
            batch.lately.clear()
            await until(lambda: len(batch.answered) > 10)
            assert not batch.refused
