"""A router before one replica, each a process of its own, with traces or without; and whoever collects those."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from bench.router_site import SiteFailed

NAME = "talker"
_READY = re.compile(r"ready on (\S+)")


@dataclass(frozen=True, slots=True)
class TracedSite:
    address: str
    """The router's."""
    pids: tuple[int, ...]

    def cpu(self) -> float:
        """Seconds that both processes have taken so far."""
        return sum(_cpu(pid) for pid in self.pids)


class Collector:
    """Takes everything and looks at nothing: what it costs is not what is measured."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.url = ""

    def take(self, raw: bytes, _: object) -> bytes:
        self.num_bytes += len(raw)
        return b""


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    export = {"Export": grpc.unary_unary_rpc_method_handler(collector.take)}
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, export),))
    collector.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0)


@contextmanager
def traced_site(engine: Sequence[str], otlp: str, checkout: Path | None = None) -> Iterator[TracedSite]:
    """`engine` is what `octet specialist` is told of its model; `checkout` another state of this project. Raises
    SiteFailed."""
    traces = ["--otlp", otlp] if otlp else []
    with TemporaryDirectory(prefix="octet-bench-") as name:
        folder = Path(name)
        config, socket = folder / "ensemble.yaml", folder / "replica.sock"
        config.write_text(f"engine: sim\nstore: {{url: memory}}\nspecialists: {{{NAME}}}\n")
        replica = ["specialist", "--name", NAME, "--socket", str(socket), *engine, *traces]
        router = ["router", "--config", str(config), "--port", "0", "--replica", f"{NAME}=unix:{socket}", *traces]
        with (
            _started(replica, folder / "replica.log", checkout) as (_, replica_pid),
            _started(router, folder / "router.log", checkout) as (address, router_pid),
        ):
            yield TracedSite(address, (router_pid, replica_pid))


@contextmanager
def _started(arguments: Sequence[str], log: Path, checkout: Path | None) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "octet.cli", *arguments]
    where = {**os.environ, "PYTHONPATH": str(checkout)} if checkout is not None else None
    with (
        log.open("w") as errors,
        subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=where, cwd=checkout
        ) as process,
    ):
        try:
            found = _READY.search(process.stdout.readline() if process.stdout else "")
            if found is None:
                raise SiteFailed(f"octet {arguments[0]} did not start: {log.read_text()[-500:]}")
            yield found[1], process.pid
        finally:
            process.terminate()


def _cpu(pid: int) -> float:
    """Of all its threads, by the scheduler's own account."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
