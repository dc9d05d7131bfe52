"""A specialist's examples are listed under another specialist, so the classifier misroutes."""

from pathlib import Path

from tests.incidents.ensembles import CONFIG, DEBUG, TEMPLATE, make_specialists, prompts_for
from tests.incidents.rehearsal import rehearse
from tests.incidents.traffic import Traffic
from tests.incidents.waiting import until

MISLED = CONFIG.replace(
    'describe: Crashes, segmentation faults, backtraces from gdb, sanitizer reports.\n    examples: ["My program',
    "describe: Templates, deduction, crashes, segmentation faults, backtraces from gdb, sanitizer reports.\n"
    '    examples: ["Why does deduction of this variadic class template fail for this argument?", "My program',
).replace("fallback: build\n    floor: 0.8\n  build:", "fallback: build\n    floor: 0.3\n  build:")
RULE = "rules: [{name: templates, specialist: template, contains: [class template]}]\n"


async def test_wrong_specialist(tmp_path: Path) -> None:
    async with rehearse(tmp_path, make_specialists(), "wrong-specialist", MISLED, speed=600, follows=True) as rehearsal:
        lost = Traffic(rehearsal, prompts_for(TEMPLATE), 4, 0.1)
        callers = Traffic(rehearsal, prompts_for(DEBUG), 6, 0.1)
        async with lost.running(), callers.running():
            assert TEMPLATE in (await rehearsal.until_shown("misrouting", DEBUG)).text
            await rehearsal.until_first("misrouting", DEBUG)
            assert lost.answerers == callers.answerers == {DEBUG}
            (row,) = [each for each in await rehearsal.shadows() if (each.primary, each.shadow) == (DEBUG, TEMPLATE)]
            assert row.only_shadow_passed > 10 > row.only_primary_passed
            assert (await rehearsal.breaker(DEBUG)).state == "closed"
            assert [lane.number for lane in (await rehearsal.view(DEBUG)).lanes] == [1], "a lane was promoted"
            assert "template" in (await rehearsal.look())["octet shadow report --last 1h"]
            assert (await rehearsal.command("route")).startswith("debug")

            lost.pause = callers.pause = 0.5
            await rehearsal.command("knobs set unspecified.shadow_threshold")
            rehearsal.config.write_text(MISLED + RULE)
            await rehearsal.command("check ensemble.yaml")
            await until(lambda: lost.answerers == {TEMPLATE})
            assert (await rehearsal.command("route")).startswith("template")
            await rehearsal.command("knobs release unspecified.shadow_threshold")
            await rehearsal.until_gone("misrouting", subject=DEBUG)
            assert (await rehearsal.breaker(DEBUG)).state == "closed", (
                "the specialist must have been right about its own topic"
            )
