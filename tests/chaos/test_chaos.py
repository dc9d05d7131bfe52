"""An ensemble in its own processes under load, while replicas die, stop and reload."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from octet import AsyncClient, OctetError, ReplicaLost
from octet.client.replica import SpecialistClient, SpecialistError
from octet.v1 import specialist_pb2 as wire
from tests.chaos.load import Load
from tests.patience import PATIENCE
from tests.serve.ensemble import ServeProcess, serving

PAIRS = """
specialists:
  left: {engine: sim, replicas: 2, describe: The left one.}
  right: {engine: sim, replicas: 2, describe: The right one.}
  alone: {engine: sim, describe: The only one of its kind.}
dispatch: {hang_seconds: 1.2}
rules:
  - {name: cake, specialist: left, contains: [cake]}
"""
BOTH = ("left", "right")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    with serving(tmp_path_factory.mktemp("chaos"), PAIRS) as served:
        yield served


def sockets(served: ServeProcess) -> dict[str, Path]:
    """Return the socket of each replica."""
    return {f"{name}-{index}": path for name in BOTH for index, path in enumerate(served.sockets(name))}


async def load_of(path: Path) -> wire.LoadReport:
    async with SpecialistClient(f"unix:{path}") as client:
        async for report in client.watch_load():
            return report
    raise AssertionError("no report")


async def until_serving(served: ServeProcess, path: Path, other_than: int) -> None:
    """Wait until a process other than `other_than` serves at this socket."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(LookupError, OSError, SpecialistError):  # The process does not exist, or is stopping.
                if served.replica(path) != other_than and not (await load_of(path)).draining:
                    return
            await asyncio.sleep(0.05)


async def test_a_rolling_restart_fails_no_request(served: ServeProcess) -> None:
    async with Load(served.address, BOTH, 12).running() as load:
        await load.answered(20)
        for path in sockets(served).values():
            pid = served.replica(path)
            os.kill(pid, signal.SIGTERM)
            await until_serving(served, path, pid)
            await load.answered(20)
    assert [str(error) for error in load.results.errors] == []
    load.results.check_answers()


async def test_killed_replicas_cost_only_running_answers(served: ServeProcess) -> None:
    async with Load(served.address, BOTH, 12).running() as load:
        for name, path in [*sockets(served).items(), next(iter(sockets(served).items()))]:
            await load.answered(20)
            pid = served.replica(path)
            os.kill(pid, signal.SIGKILL)
            await until_serving(served, path, pid)
            await load.answered_by(name)
        await load.answered(20)
    assert [error for error in load.results.errors if not isinstance(error, ReplicaLost)] == []
    assert all(error.receipt is not None for error in load.results.errors)
    load.results.check_answers()


def unblocked_time(router: int) -> float:
    """Return the monotonic time minus the time that this process and the router have waited for a CPU."""
    waited_ns = [int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) for pid in (os.getpid(), router)]
    return time.monotonic() - sum(waited_ns) / 1e9


async def test_a_stopped_replica_is_noticed_within_two_seconds_and_comes_back(served: ServeProcess) -> None:
    (path,) = served.sockets("alone")
    pid = served.replica(path)
    async with AsyncClient(served.address, max_retries=0) as client:
        async with client.stream("hello", force=["alone"], max_tokens=4000, ignore_eos=True, timeout=600) as answer:
            await anext(answer)
            os.kill(pid, signal.SIGSTOP)
            stopped = unblocked_time(served.router)
            try:
                with pytest.raises(ReplicaLost):
                    async for _ in answer:
                        pass
                noticed = unblocked_time(served.router) - stopped
                before = unblocked_time(served.router)
                with pytest.raises(OctetError):
                    await client.infer("hello", force=["alone"], max_tokens=4, timeout=6)
                refused = unblocked_time(served.router) - before
            finally:
                os.kill(pid, signal.SIGCONT)
        assert noticed < 2.0
        assert refused < 4.0
        assert answer.receipt.specialist == "alone" and answer.receipt.error is not None
        async with asyncio.timeout(PATIENCE):
            while not await _answers(client, "alone"):
                await asyncio.sleep(0.05)
    assert served.replica(path) == pid


async def _answers(client: AsyncClient, specialist: str) -> bool:
    try:
        await client.infer("hello", force=[specialist], max_tokens=4, timeout=10)
    except OctetError:
        return False
    return True


async def test_a_stopped_replica_beside_another_costs_no_new_request(served: ServeProcess) -> None:
    path = served.sockets("left")[0]
    pid = served.replica(path)
    async with AsyncClient(served.address, max_retries=0) as client:
        os.kill(pid, signal.SIGSTOP)
        try:
            asks = [client.infer(f"{n}", force=["left"], max_tokens=4, timeout=20) for n in range(16)]
            answers = await asyncio.gather(*asks)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert {answer.receipt.replica for answer in answers} == {"left-1"}
    assert any(answer.receipt.attempts[0].replica == "left-0" for answer in answers)


async def test_hot_reload_fails_no_request_and_an_invalid_file_changes_nothing(
    served: ServeProcess, tmp_path: Path
) -> None:
    config = served.file.read_text()
    async with Load(served.address, BOTH, 8).running() as load, AsyncClient(served.address) as client:

        async def route() -> str:
            return (await client.route("a piece of cake")).decision.primary

        async def rewrite(text: str) -> None:
            served.file.write_text(text)
            os.kill(served.popen.pid, signal.SIGHUP)
            await load.answered(10)

        assert await route() == "left"
        await rewrite(config.replace("specialist: left, contains", "specialist: right, contains"))
        async with asyncio.timeout(PATIENCE):
            while await route() != "right":
                await asyncio.sleep(0.05)
        for wrong in ("rules: [", config.replace("specialist: left, contains", "specialist: absent, contains")):
            await rewrite(wrong)
            assert await route() == "right"
        async with asyncio.timeout(PATIENCE):
            while "absent" not in served.err:
                await asyncio.sleep(0.05)
        await rewrite(config)
        async with asyncio.timeout(PATIENCE):
            while await route() != "left":
                await asyncio.sleep(0.05)
    assert [str(error) for error in load.results.errors] == []
    load.results.check_answers()
