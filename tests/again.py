"""A second look at the few tests that failed while others had the machine: alone, one after another. `make test` calls
it with the status of the first run. Whoever fails alone has failed; whoever does not is named, so that it gets mended.
`make proofs` gives nobody a second look."""

import json
import subprocess
import sys
from pathlib import Path

MOST = 3
"""Of five thousand. When more fail, something is broken."""
SOME_FAILED = 1
_LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def failed(cache: Path) -> list[str]:
    """The tests that the first run left failed, as pytest wrote them down."""
    try:
        names = json.loads(cache.read_text())
    except (OSError, ValueError):
        return []
    return sorted(names) if isinstance(names, dict) else []


def main(status: int, cache: Path = _LAST_FAILED) -> int:
    """The status of it all."""
    names = failed(cache)
    if status != SOME_FAILED or not 0 < len(names) <= MOST or not all("::" in name for name in names):
        return status
    print(f"\n{len(names)} failed in company; now alone:", *names, sep="\n  ", flush=True)
    alone = subprocess.run([sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", *names]).returncode
    if alone == 0:
        print("UNSTEADY, they failed in company and not alone; mend them:", *names, sep="\n  ", flush=True)
    return alone


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
