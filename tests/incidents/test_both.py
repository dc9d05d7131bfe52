"""A bad refresh while more is asked than can be done."""

from pathlib import Path

from tests.incidents.ensembles import CONFIG, TEMPLATE, asking_about
from tests.incidents.scene import rehearsal
from tests.incidents.test_capacity import crowded
from tests.incidents.traffic import Traffic

PATIENT = CONFIG.replace("breach: 500ms", "breach: 1h")
"""The breaker has not opened yet."""


async def test_both(tmp_path: Path) -> None:
    crew = crowded()
    async with rehearsal(tmp_path, crew, "both", PATIENT) as scene:
        await scene.drain("template-1")
        people = Traffic(scene, asking_about(TEMPLATE), 3, 0.1, {"intent": "template", "priority": 6})
        batch = Traffic(scene, asking_about(TEMPLATE), 15, 0.2, {"intent": "batch", "priority": 2})
        async with people.running(), batch.running():
            await scene.refresh_badly(crew[0])
            await scene.see("correctness", TEMPLATE)
            await scene.see("refusing", TEMPLATE)
            await scene.see("burning", TEMPLATE)
            await scene.tops("correctness", TEMPLATE)
            slo = await scene.slo(TEMPLATE)
            assert slo.pass_rate < slo.floor
            assert not all(each.met for each in slo.objectives if each.name != "correctness")
            assert "promote" in (await scene.look())["octet audit template"]

            await scene.command("adapters rollback template")
            await scene.over("correctness", subject=TEMPLATE)
            await scene.see("refusing", TEMPLATE, runbook="capacity")
            await scene.command("knobs set batch.priority_floor")
            await scene.over("burning", subject=TEMPLATE)
