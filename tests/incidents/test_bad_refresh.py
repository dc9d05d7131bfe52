"""A promoted adapter answers wrongly."""

from pathlib import Path

from octet.v1 import overview_pb2 as wire
from tests.incidents.ensembles import BUILD, CONFIG, TEMPLATE, make_specialists, prompts_for
from tests.incidents.rehearsal import rehearse
from tests.incidents.traffic import Traffic
from tests.incidents.waiting import until

UNHURRIED = CONFIG.replace("200ms", "10s")
"""With this objective, no request is late, however busy the machine is."""


async def test_bad_refresh(tmp_path: Path) -> None:
    specialists = make_specialists()
    async with rehearse(tmp_path, specialists, "bad-refresh", UNHURRIED) as rehearsal:
        callers = Traffic(rehearsal, prompts_for(TEMPLATE), 3, 0.1)
        async with callers.running():
            await until(lambda: len(callers.answered) > 10)
            assert callers.answerers == {TEMPLATE} and not (await rehearsal.overview()).troubles
            await rehearsal.refresh_badly(specialists[0])
            demoted = await rehearsal.until_shown("breaker_open", TEMPLATE)
            assert demoted.severity == wire.Trouble.WARNING and "; build answers instead since " in demoted.text
            await rehearsal.until_first("breaker_open", TEMPLATE)
            await until(lambda: callers.answerers == {BUILD})
            slo = await rehearsal.slo(TEMPLATE)
            assert slo.pass_rate < slo.floor
            assert await rehearsal.trouble("burning", TEMPLATE) is None, "the answers are wrong, but must not be late"
            shown = await rehearsal.look()
            assert "shadow_only" in shown["octet breakers"] and "refresh" in shown["octet lanes template"]
            assert "promote" in shown["octet audit template"]
            assert "stood in for template" in shown["octet receipts"]

            await rehearsal.command("breaker hold template")
            assert await rehearsal.trouble("breaker_held", TEMPLATE) is not None
            await rehearsal.command("adapters rollback template")
            await rehearsal.command("breaker release template")
            await rehearsal.until_gone("breaker_open", "correctness", "breaker_held", subject=TEMPLATE)
            await until(lambda: callers.answerers == {TEMPLATE})
