"""A router in front of simulated replicas, and calls to it.

`python -m bench.router_site DIRECTORY SPECIALIST...` runs the replicas of all specialists, with sockets in the
directory, and one replica that writes tokens as fast as it can.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

from bench.processes import cpu_seconds, pinned, scratch_folder, started, wait_for_sigterm
from bench.router_peers.grpc_backend import start_backend
from octet.clock import SystemClock
from octet.v1 import inference_pb2, specialist_pb2
from specialist.engines.sim.engine import CostModel
from specialist.server.replica import create_sim_replica
from specialist.server.server import ReplicaServer
from specialist.server.settings import ReplicaSettings, ServiceSettings

TOPICS = {
    "template": "why does SFINAE drop this overload when the concept is not satisfied",
    "stl": "which iterator category does std::ranges::sort want of a std::deque",
    "algo": "write a function for the longest increasing subsequence in n log n",
    "memory": "who owns the raw pointer after std::unique_ptr::release returns it",
    "concurrency": "is a relaxed atomic load enough to see what the other thread wrote under the mutex",
    "systems": "epoll_wait returns EINTR when the process gets a signal, how do I go on",
    "build": "target_link_libraries does not find the static library of the subdirectory",
    "debug": "the program prints the wrong sum, find the bug in the loop",
}
SPECIALISTS = tuple(TOPICS)
ROUTER, REPLICA = "/octet.v1.Inference/Generate", "/octet.v1.Specialist/Generate"
WATCH_LOAD = "/octet.v1.Specialist/WatchLoad"
READY = r"ready on (\S+) .*http://127\.0\.0\.1:(\d+)"  # the ready line of a router: its gRPC address and its HTTP port
FASTEST = "fastest"  # the specialist of the last replica
REPLICAS = 2
STEP = CostModel(0.001, 0.0, 0.0, 0.002, 0.0, 0.0, 0.0, 0.0)  # a prompt takes 1 ms and a token 2 ms, without CPU time
_CHUNK = 0x12  # the first byte of an event with text

Ask = Callable[[], Any]  # starts one call
Call = Callable[[], Awaitable[float]]  # runs one call; returns seconds to the first token


def infer_request(prompt: str, tokens: int, specialist: str = "") -> bytes:
    """Build a request. Without a specialist, the classifier decides."""
    force = [specialist] if specialist else []
    request = inference_pb2.InferRequest(force_specialists=force, max_tokens=tokens, ignore_eos=True)
    request.messages.add(role="user", content=prompt)
    return bytes(request.SerializeToString())


def replica_request(prompt: str, tokens: int) -> bytes:
    request = specialist_pb2.GenerateRequest(max_tokens=tokens, ignore_eos=True)
    request.chat.messages.add(role="user", content=prompt)
    return bytes(request.SerializeToString())


def new_questions() -> Iterator[tuple[str, str]]:
    """Yield the specialists in turn, each with a prompt that no classifier has cached."""
    for number, (name, topic) in enumerate(cycle(TOPICS.items())):
        yield name, f"{topic} (case {number})"


def router_ask(channel: Any, questions: Iterator[tuple[str, str]], tokens: int, *, named: bool = True) -> Ask:
    generate = channel.unary_stream(ROUTER)

    def ask() -> Any:
        name, prompt = next(questions)
        return generate(infer_request(prompt, tokens, name if named else ""))

    return ask


@asynccontextmanager
async def running(tasks: Iterable[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run the tasks inside the `with` block, then cancel them. If a task has failed by then, raise its error."""
    started = [asyncio.create_task(task) for task in tasks]
    try:
        yield
        for task in started:
            if task.done():
                task.result()
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)


async def steady(call: Call, rate: float, seconds: float) -> list[float]:
    """Start `rate` calls per second, even if others still run. Return the seconds until the first token of each."""
    start = perf_counter()
    calls = []
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - perf_counter()))
        calls.append(asyncio.ensure_future(call()))
    return list(await asyncio.gather(*calls))


async def first_chunk(ask: Ask) -> float:
    """Return the seconds until the first token of an answer that is read to its end."""
    start, first = perf_counter(), None
    async for event in ask():
        if first is None and event[0] == _CHUNK:
            first = perf_counter() - start
    if first is None:
        raise RuntimeError("the answer has no token")
    return first


async def becomes_idle(cpu: Callable[[], float], share: float, seconds: float, tries: int) -> bool:
    """Whether a process uses less than this share of a core in one of the next `tries` periods of `seconds` seconds."""
    for _ in range(tries):
        before = cpu()
        await asyncio.sleep(seconds)
        if cpu() - before < share * seconds:
            return True
    return False


async def at_once(asks: Sequence[Ask]) -> tuple[int, float]:
    """Make all calls at once. Return the number of chunks in all answers, and the seconds that all calls took."""
    start = perf_counter()

    async def count_chunks(ask: Ask) -> int:
        return sum([event[0] == _CHUNK async for event in ask()])

    counts = await asyncio.gather(*map(count_chunks, asks))
    return sum(counts), perf_counter() - start


@dataclass(frozen=True, slots=True)
class RouterSite:
    router: str  # address
    http_port: int
    replicas: Mapping[str, Sequence[str]]  # addresses by specialist
    router_pid: int

    def router_cpu(self) -> float:
        return cpu_seconds(self.router_pid)

    def router_memory(self) -> int:
        status = Path(f"/proc/{self.router_pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@contextmanager
def site() -> Iterator[RouterSite]:
    """Start replicas and a router, and pin this process to the cores that the router does not use."""
    core, *other = sorted(os.sched_getaffinity(0))
    with scratch_folder() as folder, pinned(set(other) or {core}), ExitStack() as stack:
        arguments = [str(folder), *SPECIALISTS]
        stack.enter_context(started("bench.router_site", arguments, folder / "replicas.log", ready="ready"))
        numbers = {**dict.fromkeys(SPECIALISTS, REPLICAS), FASTEST: 1}
        replicas = {
            name: [f"unix:{get_socket_path(folder, name, index)}" for index in range(number)]
            for name, number in numbers.items()
        }
        with pinned({core}):
            arguments = router_arguments(folder, replicas)
            router = stack.enter_context(started("octet.cli", arguments, folder / "router.log", ready=READY))
        yield RouterSite(router.address, int(router.ready[2]), replicas, router.pid)


def router_arguments(folder: Path, replicas: Mapping[str, Sequence[str]], settings: str = "") -> list[str]:
    """Write the ensemble file, with `settings` as further lines. Return the arguments of `octet`."""
    config = folder / "ensemble.yaml"
    config.write_text(f"classifier: {{path: default}}\nengine: sim\nspecialists: {{{', '.join(replicas)}}}\n{settings}")
    arguments = ["router", "--config", str(config), "--port", "0", "--http-port", "0"]
    for name, addresses in replicas.items():
        for address in addresses:
            arguments += ["--replica", f"{name}={address}"]
    return arguments


def get_socket_path(directory: Path, specialist: str, index: int) -> Path:
    return directory / f"{specialist}-{index}.sock"


async def _serve(directory: Path, specialists: list[str]) -> None:
    servers = []
    for name in specialists:
        for index in range(REPLICAS):
            settings = ReplicaSettings(name=name, engine="sim", num_blocks=4096, max_running=64)
            replica = create_sim_replica(settings, SystemClock(), STEP)
            servers.append(ReplicaServer(replica, ServiceSettings(socket=get_socket_path(directory, name, index))))
    fastest, _ = await start_backend(f"unix:{get_socket_path(directory, FASTEST, 0)}")
    await asyncio.gather(*(server.start() for server in servers))
    print(f"{len(servers)} replicas ready", flush=True)
    await wait_for_sigterm()
    await fastest.stop(0)
    await asyncio.gather(*(server.stop(0) for server in servers))


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # sixteen engines share this interpreter, so none may keep it for long
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
