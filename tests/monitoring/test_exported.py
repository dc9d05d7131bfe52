"""docs/metrics.md lists all exported metrics with their help texts, and every latency metric has a specialist label."""

import asyncio
import re
import subprocess
from pathlib import Path

from tests.monitoring.exported import ExportedFamily, exported, families
from tests.monitoring.prometheus import tool
from tests.monitoring.traffic import BusyEnsemble, busy_ensemble
from tests.patience import PATIENCE

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
_ITEM = re.compile(r"^- `([a-z_]+)` \((\w+)((?:, `\w+`)*)\): (.+)$", re.MULTILINE)


def documented() -> dict[str, ExportedFamily]:
    found = {}
    for section in DOCUMENT.read_text().split("\n### "):
        of_all = {"specialist", "replica"} if section.startswith("Replica") else set()
        for name, kind, labels, about in _ITEM.findall(section):
            found[name] = ExportedFamily(name, kind, about, frozenset(re.findall(r"`(\w+)`", labels)) | of_all)
    return found


async def _pages(busy: BusyEnsemble) -> list[str]:
    return [(await busy.fronted.get(path)).body.decode() for path in ("/metrics", "/metrics/replicas")]


async def _full_pages(busy: BusyEnsemble) -> list[str]:
    """Return the metrics pages of the router and its replicas once every family has samples."""
    async with asyncio.timeout(PATIENCE):
        while True:
            pages = await _pages(busy)
            if all(family.samples for family in families("".join(pages))):
                return pages
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


def _check_by_promtool(page: str) -> None:
    done = subprocess.run([tool("promtool"), "check", "metrics"], input=page, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_document_lists_exactly_the_exported_families(tmp_path: Path) -> None:
    documented_families = documented()
    async with busy_ensemble(tmp_path) as busy:
        pages = await _full_pages(busy)
    page = "".join(pages)
    there = {each.name: each for each in exported(page)}
    assert set(there) == set(documented_families)
    for name, each in there.items():
        assert each == documented_families[name]
    _check_latencies(page)
    for each_page in pages:
        _check_by_promtool(each_page)
