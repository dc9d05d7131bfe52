"""An ensemble of the bench's own, as `octet serve` would serve it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from bench.router_site import SiteFailed

NAME = "talker"
MODEL = f"octet/{NAME}"
Engine = Literal["native", "sim"]


@dataclass(frozen=True, slots=True)
class OwnSite:
    grpc: str
    http: str
    """Its address, without a path."""
    pid: int
    """Of the process that watches over all others."""


@contextmanager
def own_site(engine: Engine, replicas: int = 1, file: Path | None = None) -> Iterator[OwnSite]:
    """Of one specialist, or as the file says. Raises SiteFailed."""
    with TemporaryDirectory(prefix="octet-bench-") as name:
        folder = Path(name)
        if file is None:
            file = folder / "ensemble.yaml"
            file.write_text(
                f"engine: {engine}\nreplicas: {replicas}\nstore: {{url: memory}}\nspecialists: {{{NAME}}}\n"
            )
        command = [sys.executable, "-m", "octet.cli", "serve", str(file), "--port", "0", "--http-port", "0", "--json"]
        log = folder / "serve.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,  # noqa: S603
        ):
            try:
                yield _ready(process.stdout.readline() if process.stdout else "", log, process.pid)
            finally:
                process.terminate()


def _ready(line: str, log: Path, pid: int) -> OwnSite:
    try:
        told = json.loads(line)
        return OwnSite(told["address"], told["http"], pid)
    except (ValueError, KeyError) as error:
        last = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        raise SiteFailed(f"octet serve did not start: {last[-1][-300:] if last else 'it said nothing'}") from error
