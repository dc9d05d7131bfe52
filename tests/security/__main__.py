"""`python -m tests.security` audits the installed packages; `--online` also asks PyPI for known vulnerabilities."""

import json
import sys
from urllib.error import URLError
from urllib.request import urlopen

from packaging.version import Version

from tests.security.dependencies import ROOT, installed, least_declared, pinned, strays, unpinned
from tests.security.dependencies import below as below_floor
from tests.security.floors import FLOORS
from tests.security.licences import OTHERWISE, PERMISSIVE

_SECONDS = 20


def main(arguments: list[str]) -> int:
    packages, pins = installed(), pinned((ROOT / "constraints.txt").read_text())
    troubles = [f"no package requires {name}" for name in strays(packages, ("dev",))]
    troubles += unpinned(packages, pins)
    troubles += below_floor({name: package.version for name, package in packages.items()}, FLOORS)
    troubles += below_floor(least_declared(packages), FLOORS)
    for name, package in sorted(packages.items()):
        licence = OTHERWISE.get(name, "") or " and ".join(package.licences)
        print(f"{name} {package.version}: {licence}")
        if name not in OTHERWISE and not PERMISSIVE.issuperset(package.licences):
            troubles.append(f"{name} has the licence {licence!r}, which is not reviewed")
    if "--online" in arguments:
        troubles += _known_holes(pins)
    print(*troubles, sep="\n")
    print(f"{len(packages)} packages, {len(troubles)} findings")
    return 1 if troubles else 0


def _known_holes(pins: dict[str, Version]) -> list[str]:
    """Return the known vulnerabilities of all pinned packages. A failed query is reported as a finding, because a
    missing report would look like a clean result."""
    troubles = []
    for name, version in pins.items():
        try:
            with urlopen(f"https://pypi.org/pypi/{name}/{version}/json", timeout=_SECONDS) as answer:
                holes = json.load(answer)["vulnerabilities"]
        except (URLError, ValueError, KeyError, TimeoutError) as error:
            troubles.append(f"{name} {version}: PyPI is unreachable: {error}")
            continue
        troubles += [f"{name} {version}: {hole['id']}, fixed in {', '.join(hole['fixed_in'])}" for hole in holes]
    return troubles


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
