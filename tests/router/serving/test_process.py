"""What a router process prints, and how it ends."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from octet.v1 import inference_pb2 as wire
from tests.patience import PATIENCE
from tests.router.serving.test_replica_processes import processes
from tests.specialist.server.test_process import ROOT

ENSEMBLE = """
specialists:
  writer:
    describe: words and sentences
    engine: sim
    examples: ["write me a story", "say it in other words"]
"""


def octet(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "octet.cli", "router", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextmanager
def router(config: Path, *replicas: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start a router. Yield the process and its ready line."""
    given = [argument for address in replicas for argument in ("--replica", f"writer={address}")]
    process = octet("--config", str(config), "--port", "0", "--no-http", *given)
    try:
        if process.stdout is None:
            raise RuntimeError("no pipe")
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def test_a_router_process_reports_ready_answers_and_drains(tmp_path: Path) -> None:
    config = tmp_path / "ensemble.yaml"
    config.write_text(ENSEMBLE)
    with processes(1) as (replica,), router(config, replica.address) as (process, line):
        assert line.startswith("octet router ready on 127.0.0.1:") and "(1 specialists, 1 replicas, classifier " in line
        address = line.split(" ready on ")[1].split()[0]
        with grpc.insecure_channel(address) as channel:
            method = channel.unary_stream(
                "/octet.v1.Inference/Generate", wire.InferRequest.SerializeToString, wire.InferEvent.FromString
            )
            asked = wire.InferRequest(
                prompt="write me a story", force_specialists=["writer"], max_tokens=60, ignore_eos=True
            )
            events = iter(method(asked, timeout=PATIENCE))
            next(events)
            next(events)
            process.send_signal(signal.SIGTERM)
            rest = list(events)
            assert rest[-1].receipt.usage.completion_tokens == 60
        assert process.wait(timeout=PATIENCE) == 0


def test_a_configuration_error_is_reported_before_the_start(tmp_path: Path) -> None:
    config = tmp_path / "ensemble.yaml"
    config.write_text(ENSEMBLE)
    for arguments, complaint in (
        (("--config", str(config)), "no addresses are configured for writer"),
        (("--config", str(config), "--replica", "poet=127.0.0.1:1"), "no specialist 'poet'"),
        (("--config", str(config), "--replica", "writer=127.0.0.1:1", "--host", "0.0.0.0"), "--insecure"),  # noqa: S104
        (("--config", str(tmp_path / "absent.yaml")), "absent.yaml"),
    ):
        process = octet(*arguments)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (2, "")
        assert complaint in err and "Traceback" not in err
