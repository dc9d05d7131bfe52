"""An adapter is promoted that answers wrongly."""

from pathlib import Path

from octet.v1 import overview_pb2 as wire
from tests.incidents.ensembles import BUILD, CONFIG, TEMPLATE, asking_about, trades
from tests.incidents.scene import rehearsal
from tests.incidents.traffic import Traffic
from tests.incidents.waiting import until

UNHURRIED = CONFIG.replace("200ms", "10s")
"""Nobody is late here, however busy the machine is."""


async def test_bad_refresh(tmp_path: Path) -> None:
    crew = trades()
    async with rehearsal(tmp_path, crew, "bad-refresh", UNHURRIED) as scene:
        people = Traffic(scene, asking_about(TEMPLATE), 3, 0.1)
        async with people.running():
            await until(lambda: len(people.answered) > 10)
            assert people.answerers == {TEMPLATE} and not (await scene.overview()).troubles
            await scene.refresh_badly(crew[0])
            demoted = await scene.see("breaker_open", TEMPLATE)
            assert demoted.severity == wire.Trouble.WARNING and "; build answers instead since " in demoted.text
            await scene.tops("breaker_open", TEMPLATE)
            await until(lambda: people.answerers == {BUILD})
            slo = await scene.slo(TEMPLATE)
            assert slo.pass_rate < slo.floor
            assert await scene.trouble("burning", TEMPLATE) is None, "they are wrong, and quick"
            told = await scene.look()
            assert "shadow_only" in told["octet breakers"] and "refresh" in told["octet lanes template"]
            assert "promote" in told["octet audit template"]
            assert "stood in for template" in told["octet receipts"]

            await scene.command("breaker hold template")
            assert await scene.trouble("breaker_held", TEMPLATE) is not None
            await scene.command("adapters rollback template")
            await scene.command("breaker release template")
            await scene.over("breaker_open", "correctness", "breaker_held", subject=TEMPLATE)
            await until(lambda: people.answerers == {TEMPLATE})
