"""Examples of one specialist stand under another's name: the classifier sends it what it knows nothing about."""

from pathlib import Path

from tests.incidents.ensembles import CONFIG, DEBUG, TEMPLATE, asking_about, trades
from tests.incidents.scene import rehearsal
from tests.incidents.traffic import Traffic
from tests.incidents.waiting import until

MISLED = CONFIG.replace(
    'describe: Crashes, segmentation faults, backtraces from gdb, sanitizer reports.\n    examples: ["My program',
    "describe: Templates, deduction, crashes, segmentation faults, backtraces from gdb, sanitizer reports.\n"
    '    examples: ["Why does deduction of this variadic class template fail for this argument?", "My program',
).replace("fallback: build\n    floor: 0.8\n  build:", "fallback: build\n    floor: 0.3\n  build:")
RULE = "rules: [{name: templates, specialist: template, contains: [class template]}]\n"


async def test_wrong_specialist(tmp_path: Path) -> None:
    async with rehearsal(tmp_path, trades(), "wrong-specialist", MISLED, hurry=600, follows=True) as scene:
        lost = Traffic(scene, asking_about(TEMPLATE), 4, 0.1)
        people = Traffic(scene, asking_about(DEBUG), 6, 0.1)
        async with lost.running(), people.running():
            assert TEMPLATE in (await scene.see("misrouting", DEBUG)).text
            await scene.tops("misrouting", DEBUG)
            assert lost.answerers == people.answerers == {DEBUG}
            (row,) = [each for each in await scene.shadows() if (each.primary, each.shadow) == (DEBUG, TEMPLATE)]
            assert row.only_shadow_passed > 10 > row.only_primary_passed
            assert (await scene.breaker(DEBUG)).state == "closed"
            assert [lane.number for lane in (await scene.view(DEBUG)).lanes] == [1], "nothing was promoted"
            assert "template" in (await scene.look())["octet shadow report --last 1h"]
            assert (await scene.command("route")).startswith("debug")

            lost.pause = people.pause = 0.5
            await scene.command("knobs set unspecified.shadow_threshold")
            scene.config.write_text(MISLED + RULE)
            await scene.command("check ensemble.yaml")
            await until(lambda: lost.answerers == {TEMPLATE})
            assert (await scene.command("route")).startswith("template")
            await scene.command("knobs release unspecified.shadow_threshold")
            await scene.over("misrouting", subject=DEBUG)
            assert (await scene.breaker(DEBUG)).state == "closed", "it was good at its own all the while"
