"""`python -m bench.pages`: write the figures into the pages; with --check, say where they differ."""

import argparse
import sys
from pathlib import Path

from bench.pages.faults import Row, fault_table, read_findings
from bench.pages.figures import figures
from bench.pages.marker import Marker, MarkerRefused, filled
from bench.pages.origin import notes, origin
from bench.result import ResultUnreadable, read_result

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs"
RESULTS = ROOT / "bench/results"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail where a page is not what it should be"
    )
    arguments = parser.parse_args(words)
    stale = []
    try:
        for page in sorted(PAGES.glob("*.md")):
            before = page.read_text(encoding="utf-8")
            after = filled(before, _fill)
            if after != before:
                stale.append(page.relative_to(ROOT))
                if not arguments.check:
                    page.write_text(after, encoding="utf-8")
    except (MarkerRefused, ResultUnreadable, OSError) as error:
        sys.exit(f"bench.pages: {error}")
    for page in stale:
        print(f"{page}: {'differs from bench/results: run `make pages`' if arguments.check else 'written'}")
    return 1 if stale and arguments.check else 0


def _fill(marker: Marker) -> str:
    if marker.kind == "faults":
        return fault_table(_rows(), read_findings(RESULTS / "faults.jsonl"))
    result = read_result(RESULTS / f"{marker.name}.json")
    if result.bench != marker.name.partition("-")[0]:
        raise MarkerRefused(f"{marker.name}.json: its name is to begin with the bench it is of, {result.bench}")
    match marker.kind:
        case "figures":
            return figures(result.records, marker.options)
        case "origin":
            return origin(result)
        case "notes":
            return notes(result)
    raise MarkerRefused(f"{marker.kind}: nobody fills it")


def _rows() -> list[Row]:
    from tests.faults.rows import ROWS  # a checkout's, not an installation's

    return [Row(row.number, row.fault, row.demand, row.tests) for row in ROWS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
