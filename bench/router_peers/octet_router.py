"""Octet's router as it is measured beside others."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.peers.ports import HOST
from bench.router_site import SPECIALISTS

NAMED = SPECIALISTS[-1]
"""Whom callers ask for by name."""
_HANG_SECONDS = 15
"""Instead of 1.2: replicas share a core with all callers, and are not to be given up where that core has much to do."""
_READY = re.compile(r"ready on (\S+) .*http://127\.0\.0\.1:(\d+)")


def octet_command(folder: Path, ports: Sequence[int]) -> Sequence[str]:
    """As many replicas for each specialist, in turn."""
    config = folder / "ensemble.yaml"
    config.write_text(
        f"classifier: {{path: default}}\nengine: sim\nspecialists: {{{', '.join(SPECIALISTS)}}}\n"
        f"dispatch: {{hang_seconds: {_HANG_SECONDS}}}\n"
    )
    command = [sys.executable, "-m", "octet.cli", "router", "--config", str(config), "--port", "0", "--http-port", "0"]
    for number, port in enumerate(ports):
        command += ["--replica", f"{SPECIALISTS[number % len(SPECIALISTS)]}={HOST}:{port}"]
    return command


def octet_doors(said: str) -> tuple[str, int] | None:
    """The address for gRPC and the port for HTTP, once it has said so."""
    found = _READY.search(said)
    return (found[1], int(found[2])) if found else None
