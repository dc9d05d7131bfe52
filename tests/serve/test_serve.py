"""`octet serve` starts a router and its specialists, and supervises them."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from octet import Client, Operator
from octet.client.records import ReplicaInfo
from octet.client.replica import SpecialistClient
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2
from tests.octet.supervisor.test_supervisor import is_alive
from tests.patience import PATIENCE
from tests.serve.ensemble import ROOT, TWO, ServeProcess, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with serving(tmp_path_factory.mktemp("serve")) as served:
        yield served


def infer(address: str, specialist: str) -> wire.InferResponse:
    """Return the router's answer, once the router is ready."""
    request = wire.InferRequest(prompt="hello", force_specialists=[specialist], max_tokens=4)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/octet.v1.Inference/Infer", wire.InferRequest.SerializeToString, wire.InferResponse.FromString
        )
        response: wire.InferResponse = call(request, timeout=PATIENCE, wait_for_ready=True)
    return response


def describe(path: Path) -> specialist_pb2.DescribeResponse:
    async def ask() -> specialist_pb2.DescribeResponse:
        async with SpecialistClient(f"unix:{path}") as client:
            return await client.describe()

    return asyncio.run(ask())


def test_ready_line_and_process_table(served: ServeProcess) -> None:
    *rows, ready, dashboard, example = served.out.splitlines()
    assert [row.split()[0] for row in rows] == ["sql", "shell/1", "shell/2"]
    assert all("sim" in row and "blocks of 16" in row for row in rows)
    assert f"octet ready on {served.address} and http://127.0.0.1:" in ready
    assert "(2 specialists, 4 processes, " in ready and " MiB) after " in ready
    assert dashboard == f"  dashboard: {ready.split()[5]}/dashboard"
    prompt = "'write a SELECT with a join'"
    assert example == f"  try: {sys.executable} -m octet.cli generate {prompt} --address {served.address}"
    assert len(served.pids) == 4


def test_replicas_listen_in_a_private_folder(served: ServeProcess) -> None:
    paths = served.sockets("sql") + served.sockets("shell")
    assert len(paths) == 3
    for path in paths:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [describe(path).lane.specialist for path in paths] == ["sql", "shell", "shell"]


def test_every_specialist_answers_through_the_router(served: ServeProcess) -> None:
    for name in ("sql", "shell"):
        assert infer(served.address, name).receipt.specialist == name


def test_killed_replica_is_restarted_at_its_socket(served: ServeProcess) -> None:
    (path,) = served.sockets("sql")
    victim = served.replica(path)
    os.kill(victim, signal.SIGKILL)
    served.until(lambda: served.err.count("sql     | ready after") == 2)
    assert "sql was killed by SIGKILL" in served.err
    assert served.replica(path) != victim and _serves(path)
    served.until(lambda: _answers(served.address, "sql"))
    with Operator(served.address) as operator:

        def find() -> ReplicaInfo:
            return next(each for each in operator.replicas() if each.specialist == "sql")

        served.until(lambda: find().restarts == 1)
        assert find().last_restart_reason == "killed by SIGKILL" and find().last_restart_unix_ms > 0
        entry = next(each for each in operator.audit(find().name) if each.what == "restart")
        assert (entry.who, entry.why) == ("octet", "killed by SIGKILL")
        overview = operator.overview()
        assert "replica_restarted" in [each.kind for each in overview.troubles]
        assert "All well" not in overview.headline and "sql-0" in overview.headline


def test_killed_router_is_restarted_at_its_port(served: ServeProcess) -> None:
    victim = served.router
    os.kill(victim, signal.SIGKILL)
    served.until(lambda: not is_alive(victim))
    assert infer(served.address, "shell").receipt.specialist == "shell"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: text + "rules: [oops\n", "ensemble.yaml"),
        (lambda text: text.replace("  sql:", "  tables:"), "these keys need a restart of all processes to change"),
    ],
    ids=["broken", "of other specialists"],
)
def test_router_restarts_with_an_invalid_file(served: ServeProcess, spoil: Callable[[str], str], says: str) -> None:
    good, victim, num_printed = served.file.read_text(), served.router, len(served.err)
    try:
        served.file.write_text(spoil(good))
        os.kill(victim, signal.SIGKILL)
        served.until(lambda: not is_alive(victim))
        assert infer(served.address, "sql").receipt.specialist == "sql"
        loud = "starts with the last accepted configuration"
        assert says in served.err[num_printed:] and loud in served.err[num_printed:]
    finally:
        served.file.write_text(good)


def test_router_restarts_with_the_last_accepted_configuration(served: ServeProcess) -> None:
    good = served.file.read_text()
    changed = good + "intents: {ask: {specialist: sql}}\n"
    try:
        served.file.write_text(changed)
        served.until(lambda: "the configuration was reloaded: intents" in served.err)
        served.file.write_text(changed + "rules: [oops\n")
        victim = served.router
        os.kill(victim, signal.SIGKILL)
        served.until(lambda: not is_alive(victim))
        infer(served.address, "sql")
        with Client(served.address) as client:
            assert client.route("x", intent="ask").decision.primary == "sql"
    finally:
        served.file.write_text(good)


def _serves(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _answers(address: str, specialist: str) -> bool:
    try:
        return infer(address, specialist).receipt.specialist == specialist
    except grpc.RpcError:
        return False


def test_sigterm_ends_everything_in_order(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        (path,) = served.sockets("sql")
        pids = served.pids
        served.popen.send_signal(signal.SIGTERM)
        assert served.popen.wait(PATIENCE) == 0
        assert not any(map(is_alive, pids))
        assert not path.parent.exists()
        assert "had to" not in served.err and "killed" not in served.err


def octet_serve(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "octet.cli", "serve", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_all_mistakes_are_reported_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("specialists:\n  sql: {engine: simm}\n  shell: {model: /nowhere.gguf, block_size: 0}\n")
    status, output = octet_serve(str(file))
    assert status == 2
    assert f"{file}:2:" in output and f"{file}:3:" in output and "simm" in output and "block_size" in output


def test_missing_model_is_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "missing.yaml"
    file.write_text("specialists:\n  sql: {model: nowhere.gguf}\n")
    status, output = octet_serve(str(file))
    assert status == 2 and "nowhere.gguf" in output and len(output.splitlines()) == 1


def test_taken_port_is_reported_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, output = octet_serve(str(file), "--port", str(port))
    assert status == 2
    assert output.startswith(f"octet serve: cannot listen on 127.0.0.1:{port}") and len(output.splitlines()) == 1


def test_public_address_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "open.yaml"
    file.write_text(TWO + 'router: {host: "0.0.0.0"}\n')
    status, output = octet_serve(str(file))
    assert status == 2 and "router.host 0.0.0.0 can be reached from other machines" in output


def test_replica_with_invalid_settings_stops_everything(tmp_path: Path) -> None:
    file = tmp_path / "adapter.yaml"
    (tmp_path / "style").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "style" / name).write_text("{}")
    digest = "0" * 64
    file.write_text(
        f"specialists:\n  sql: {{engine: sim, adapters: {{style: style}}, adapter_digests: {{style: '{digest}'}}}}\n"
    )
    status, output = octet_serve(str(file), "--port", "0", "--no-http")
    assert status == 2
    assert output.splitlines()[-1].startswith("sql cannot start; shutting down: ")
