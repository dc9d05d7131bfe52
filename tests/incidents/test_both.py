"""A bad adapter is promoted during an overload."""

from pathlib import Path

from tests.incidents.ensembles import CONFIG, TEMPLATE, prompts_for
from tests.incidents.rehearsal import rehearse
from tests.incidents.test_capacity import overloaded
from tests.incidents.traffic import Traffic

PATIENT = CONFIG.replace("breach: 500ms", "breach: 1h")
"""With this setting, the breaker does not open during the test."""


async def test_both(tmp_path: Path) -> None:
    specialists = overloaded()
    async with rehearse(tmp_path, specialists, "both", PATIENT) as rehearsal:
        await rehearsal.drain("template-1")
        callers = Traffic(rehearsal, prompts_for(TEMPLATE), 3, 0.1, {"intent": "template", "priority": 6})
        batch = Traffic(rehearsal, prompts_for(TEMPLATE), 15, 0.2, {"intent": "batch", "priority": 2})
        async with callers.running(), batch.running():
            await rehearsal.refresh_badly(specialists[0])
            await rehearsal.until_shown("correctness", TEMPLATE)
            await rehearsal.until_shown("refusing", TEMPLATE)
            await rehearsal.until_shown("burning", TEMPLATE)
            await rehearsal.until_first("correctness", TEMPLATE)
            slo = await rehearsal.slo(TEMPLATE)
            assert slo.pass_rate < slo.floor
            assert not all(each.met for each in slo.objectives if each.name != "correctness")
            assert "promote" in (await rehearsal.look())["octet audit template"]

            await rehearsal.command("adapters rollback template")
            await rehearsal.until_gone("correctness", subject=TEMPLATE)
            await rehearsal.until_shown("refusing", TEMPLATE, runbook="capacity")
            await rehearsal.command("knobs set batch.priority_floor")
            await rehearsal.until_gone("burning", subject=TEMPLATE)
