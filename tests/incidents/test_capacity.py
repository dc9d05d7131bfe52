"""A specialist gets more requests than it can serve, while one of its replicas is drained."""

import asyncio
from pathlib import Path

from specialist.engines.sim.engine import CostModel
from tests.incidents.ensembles import BUILD, TEMPLATE, make_specialists, prompts_for
from tests.incidents.rehearsal import rehearse
from tests.incidents.scripted_specialist import ScriptedSpecialist
from tests.incidents.traffic import Traffic
from tests.incidents.waiting import until

SLOW = CostModel(0.002, 0.00001, 0.0, 0.045, 0.00002, 0.0, 0.0, 0.0)
"""Costs with which an answer takes half a second."""


def overloaded() -> list[ScriptedSpecialist]:
    """Return three specialists. `template` has enough capacity with two replicas, but not with one. Its fallback has
    too little capacity as well."""
    _, debug, _ = make_specialists()
    busy = ScriptedSpecialist(BUILD, ("",), cost=SLOW, max_running=1, max_waiting=1)
    return [
        ScriptedSpecialist(TEMPLATE, ("template",), replicas=2, cost=SLOW, max_running=8, max_waiting=6),
        debug,
        busy,
    ]


async def test_capacity(tmp_path: Path) -> None:
    async with rehearse(tmp_path, overloaded(), "capacity") as rehearsal:
        await rehearsal.drain("template-1")
        callers = Traffic(rehearsal, prompts_for(TEMPLATE), 3, 0.1, {"intent": "template", "priority": 6})
        batch = Traffic(rehearsal, prompts_for(TEMPLATE), 15, 0.2, {"intent": "batch", "priority": 2})

        async def kept() -> bool:
            first = (await rehearsal.slo(TEMPLATE)).admission_to_first_token
            return first.samples > 0 and first.p95 < 0.2

        async def spilled() -> bool:
            return " spilled" in (await rehearsal.look())["octet receipts"]

        async with callers.running(), batch.running():
            await rehearsal.until_shown("refusing", TEMPLATE)
            await rehearsal.until_shown("burning", TEMPLATE)
            await rehearsal.until_first("refusing", TEMPLATE)
            await until(rehearsal.judged(TEMPLATE))
            slo = await rehearsal.slo(TEMPLATE)
            while not slo.HasField("pass_rate"):  # Service levels may be half a second old.
                await asyncio.sleep(0.05)
                slo = await rehearsal.slo(TEMPLATE)
            (promise,) = [each for each in slo.objectives if each.name == "admission_to_first_token_p95"]
            assert not promise.met and promise.target == 0.2 and slo.admission_to_first_token.p95 > promise.target
            assert slo.pass_rate >= slo.floor, "the answers must be right, although late"
            assert await rehearsal.trouble("correctness", TEMPLATE) is None
            shown = await rehearsal.look()
            assert "drained_by_operator" in shown["octet replicas"]
            lines = [line for line in shown["octet slo template"].splitlines() if promise.name in line]
            assert any(" no " in line for line in lines)
            assert "refused: queue_full" in shown["octet receipts --specialist template --outcome refused"]
            await until(spilled)

            await rehearsal.command("knobs set batch.priority_floor")
            await rehearsal.until_gone("burning", subject=TEMPLATE)
            await until(kept)
            await rehearsal.command("undrain template-1")
            await rehearsal.command("knobs release batch.priority_floor")
            await rehearsal.until_gone("burning", "refusing", subject=TEMPLATE)
            batch.lately.clear()
            await until(lambda: len(batch.answered) > 10)
            assert not batch.refused
