"""The document lists what is exported, in the same words; and the law: a latency belongs to one specialist."""

import asyncio
import re
from pathlib import Path

from tests.monitoring.exported import Exported, exported, families
from tests.monitoring.traffic import House, busy_house
from tests.service.harness import run

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `([a-z_]+)` \| (\w+) \| (.+?) \| (.+) \|$", re.MULTILINE)
_NOBODY_FAILS = {"octet_replica_scrape_failures_total"}


def documented() -> dict[str, Exported]:
    return {
        name: Exported(name, kind, about, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, about in _ROW.findall(DOCUMENT.read_text())
    }


async def _pages(house: House) -> str:
    own, replicas = await house.fronted.get("/metrics"), await house.fronted.get("/metrics/replicas")
    return own.body.decode() + replicas.body.decode()


async def _full_pages(house: House) -> str:
    """Once every family has figures."""
    async with asyncio.timeout(60):
        while True:
            page = await _pages(house)
            empty = {family.name for family in families(page) if not family.samples}
            if {f"{name}_total" for name in empty} <= _NOBODY_FAILS:
                return page
            await asyncio.sleep(0.7)


def _check_latencies(page: str) -> None:
    found = [
        family
        for family in families(page)
        if re.search(r"_seconds|per_second", family.name) and not family.name.startswith("process_")
    ]
    assert len(found) > 15
    for family in found:
        assert family.samples and all(sample.labels.get("specialist") for sample in family.samples), family.name


def test_the_document_has_every_family_and_no_other(tmp_path: Path) -> None:
    told = documented()

    async def story() -> None:
        async with busy_house(tmp_path) as house:
            page = await _full_pages(house)
        there = {each.name: each for each in exported(page)}
        assert set(there) == set(told)
        for name, each in there.items():
            expected = (
                told[name] if name not in _NOBODY_FAILS else Exported(name, "counter", told[name].about, each.labels)
            )
            assert each == expected
        _check_latencies(page)

    run(story(), 120)
