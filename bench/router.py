"""What the router adds: to the first token, to every token, in memory, and for a decision."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import uvloop
from grpc import aio

from admission.breakers import CircuitBreaker
from bench.processes import pinned, scratch_folder, started
from bench.router_farm import NAME as HOSE
from bench.router_farm import REPLICAS, socket_of
from bench.timing import Subject, Targets, Work, interleave
from octet.clock import SystemClock
from octet.config.ensemble import DispatchConfig
from octet.config.loader import default_ensemble
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire
from octet.v1 import specialist_pb2 as specialist_wire
from router.dispatch.replicas.replica import Replica, ReplicaSet
from router.dispatch.transport import READ_LIMITS, ReplicaTarget, open_transport
from router.request import Tracer
from router.routing.classifier.queue import open_classifier_queue
from router.routing.policy import RoutingPolicy
from router.routing.validation import RequestValidator
from simulation.results import BenchRecord, percentile, summary

_PAUSES = {"a decision": 0.0, "a decision after a pause": 0.002}
# seconds before each decision, so that caches cool
_DECISIONS = 200
_QUESTION = "is a relaxed atomic load enough to see what the other thread wrote under the mutex"
_LINKER = "main.cpp:(.text+0x1f): undefined reference to `vtable for Shape'\ncollect2: error: ld returned 1 exit status"
_LONG = "for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * weights[i];\n" * 2500


def decision_records(runs: int) -> list[BenchRecord]:
    numbers = count()
    cases: dict[str, Callable[[], str]] = {
        "by the classifier": lambda: f"{_QUESTION} (case {next(numbers)})",
        "by the classifier, 200 KB": lambda: f"{_LONG} (case {next(numbers)})",
        "from the cache": lambda: _QUESTION,
        "by rule": lambda: f"{_LINKER} (case {next(numbers)})",
    }
    samples = uvloop.run(_rounds(cases, runs))
    return [summary(each, "router", case, f"{name}, p50", "ms", "octet") for (case, name), each in samples.items()]


async def _rounds(cases: dict[str, Callable[[], str]], runs: int) -> dict[tuple[str, str], list[float]]:
    ensemble = default_ensemble()
    clock = SystemClock()
    policy = RoutingPolicy(ensemble)
    reception = RequestValidator(clock, lambda: "bench", Tracer(bytes), default_timeout=60.0)
    samples: dict[tuple[str, str], list[float]] = {(when, name): [] for when in _PAUSES for name in cases}
    async with open_classifier_queue(ensemble, clock) as opinions:

        async def decide(prompt: str) -> float:
            message = wire.InferRequest(prompt=prompt)
            start = perf_counter()
            await policy.classify_and_decide(reception.validate(message, None, None), opinions)
            return (perf_counter() - start) * 1e3

        await decide(_QUESTION)
        for _ in range(runs):
            for when, name in samples:
                taken = []
                for _ in range(_DECISIONS):
                    await asyncio.sleep(_PAUSES[when])
                    taken.append(await decide(cases[name]()))
                samples[when, name].append(percentile(taken, 50))
    return samples


BENCH = "router"
LANES = (8, 128, 1024)  # replicas of one specialist
_WAYS = {"some are drawn": True, "all are looked at": False}
_CHOICES = 100
_SEATS = 16


def choice_case(num_replicas: int) -> str:
    return f"one of {num_replicas:,} replicas is chosen"


def choice_records(runs: int) -> list[BenchRecord]:
    subjects = [
        Subject(choice_case(number), way, "µs", partial(_ready, lane, is_drawn), _CHOICES)
        for number, lane in ((number, _lane(number)) for number in LANES)
        for way, is_drawn in _WAYS.items()
    ]
    return [timing.record(BENCH) for timing in interleave(subjects, runs)]


def _ready(lane: ReplicaSet, is_drawn: bool) -> Work:
    random = Random(7)
    for index, replica in enumerate(lane.replicas.values()):
        replica.load_reported(
            specialist_wire.LoadReport(max_running=_SEATS, max_waiting=_SEATS, running=index % _SEATS)
        )

    def work() -> None:
        for _ in range(_CHOICES):
            lane.choose((), b"", (), random, healthy=is_drawn)

    return work


def _lane(num_replicas: int) -> ReplicaSet:
    clock, dispatch, connect = SystemClock(), DispatchConfig(), open_transport()
    lane = ReplicaSet("stl", dispatch, clock)
    for index in range(num_replicas):
        target = ReplicaTarget(str(index), f"127.0.0.1:{index + 1}")
        cooling = {"cool_down": dispatch.cool_down, "max_cool_down": dispatch.max_cool_down}
        breaker = CircuitBreaker(clock, failures=dispatch.failures, **cooling)
        replica = Replica("stl", target, connect(target, READ_LIMITS), breaker, clock, _SEATS)
        replica.health_reported(is_serving=True)
        lane.replicas[replica.name] = replica
    return lane


_CHUNK = 0x12  # the first byte of an event with text

Ask = Callable[[], Any]  # starts one call
Call = Callable[[], Awaitable[float]]  # runs one call; returns seconds to the first token


async def steady(call: Call, rate: float, seconds: float) -> list[float]:
    """Seconds to the first token of each call. Calls begin on time, whether or not others have ended."""
    start = perf_counter()
    calls = []
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - perf_counter()))
        calls.append(asyncio.ensure_future(call()))
    return list(await asyncio.gather(*calls))


def call_of(ask: Ask) -> Call:
    return partial(_first_chunk, ask)


async def _first_chunk(ask: Ask) -> float:
    start, first = perf_counter(), None
    async for event in ask():
        if first is None and event[0] == _CHUNK:
            first = perf_counter() - start
    if first is None:
        raise RuntimeError("an answer without a token")
    return first


async def at_once(asks: Sequence[Ask]) -> tuple[int, float]:
    start = perf_counter()

    async def count_chunks(ask: Ask) -> int:
        return sum([event[0] == _CHUNK async for event in ask()])

    counts = await asyncio.gather(*map(count_chunks, asks))
    return sum(counts), perf_counter() - start


SPECIALISTS = ("template", "stl", "algo", "memory", "concurrency", "systems", "build", "debug")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class RouterSite:
    router: str  # address
    http_port: int
    replicas: Mapping[str, tuple[str, ...]]  # by specialist
    router_pid: int

    def router_cpu(self) -> float:
        fields = Path(f"/proc/{self.router_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def router_memory(self) -> int:
        status = Path(f"/proc/{self.router_pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@contextmanager
def site() -> Iterator[RouterSite]:
    """Pins this process to the cores that the router does not use."""
    core, *other = sorted(os.sched_getaffinity(0))
    with scratch_folder() as folder, pinned(set(other) or {core}), ExitStack() as stack:
        farm = ("bench.router_farm", [str(folder), *SPECIALISTS], folder / "farm.log")
        stack.enter_context(started(*farm, ready="ready"))
        replicas = {name: _addresses(folder, name) for name in SPECIALISTS}
        config = folder / "ensemble.yaml"
        names = ", ".join((*SPECIALISTS, HOSE))
        config.write_text(f"classifier: {{path: default}}\nengine: sim\nspecialists: {{{names}}}\n")
        arguments = ["router", "--config", str(config), "--port", "0", "--http-port", "0"]
        for name, addresses in (*replicas.items(), (HOSE, (f"unix:{socket_of(folder, HOSE, 0)}",))):
            for address in addresses:
                arguments += ["--replica", f"{name}={address}"]
        with pinned({core}):
            ready = r"ready on (\S+) .*http://127\.0\.0\.1:(\d+)"
            router = stack.enter_context(started("octet.cli", arguments, folder / "router.log", ready=ready))
        yield RouterSite(router.address, int(router.ready[2]), replicas, router.pid)


def _addresses(folder: Path, name: str) -> tuple[str, ...]:
    return tuple(f"unix:{socket_of(folder, name, index)}" for index in range(REPLICAS))


_Round = dict[str, list[float]]  # seconds to the first token, by path
RATE = 100
STREAMS = 64
WORDS = 1000  # tokens of an answer from the hose
ANSWERS = (4, 16)
# tokens of an answer; with the longer ones replicas and callers fill their core
_TOPICS = {
    "template": "why does SFINAE drop this overload when the concept is not satisfied",
    "stl": "which iterator category does std::ranges::sort want of a std::deque",
    "algo": "write a function for the longest increasing subsequence in n log n",
    "memory": "who owns the raw pointer after std::unique_ptr::release returns it",
    "concurrency": "is a relaxed atomic load enough to see what the other thread wrote under the mutex",
    "systems": "epoll_wait returns EINTR when the process gets a signal, how do I go on",
    "build": "target_link_libraries does not find the static library of the subdirectory",
    "debug": "the program prints the wrong sum, find the bug in the loop",
}


def steady_case(tokens: int) -> str:
    return f"{RATE} requests/s, {tokens} tokens"


RELAY = f"{STREAMS} streams at once, a token a message"
TARGETS: Targets = {
    **{(steady_case(tokens), "added to the first token, p50"): "<= 2 ms" for tokens in ANSWERS},
    **{(steady_case(tokens), "added to the first token, p99"): "<= 13 ms" for tokens in ANSWERS},
    (RELAY, "relayed"): ">= 10,000 tok/s",
    ("memory", "router"): "< 150 MB",
    ("a decision", "by the classifier, p50"): "< 1 ms",
    ("a decision", "from the cache, p50"): "< 0.2 ms",
    ("a decision", "by rule, p50"): "< 0.2 ms",
}


def measure(runs: int, *, quick: bool) -> list[BenchRecord]:
    with site() as where:
        records = uvloop.run(_measure(where, runs, 1.0 if quick else 6.0, WORDS // 10 if quick else WORDS))
    return [*records, *decision_records(runs), *choice_records(runs)]


async def _measure(where: RouterSite, runs: int, seconds: float, tokens: int) -> list[BenchRecord]:
    async with _Callers(where) as callers:
        await steady(call_of(callers.routed(ANSWERS[0])), RATE, 1.0)
        rounds = {
            tokens: [await _first_tokens(callers, tokens, seconds, number) for number in range(runs)]
            for tokens in ANSWERS
        }
        relays = [await _relay(where, callers, tokens) for _ in range(runs)]
    first = [record for tokens in ANSWERS for record in _first_token_records(steady_case(tokens), rounds[tokens])]
    return [
        *first,
        summary([by_clock for by_clock, _ in relays], BENCH, RELAY, "relayed", "tok/s", "octet"),
        summary([by_core for _, by_core in relays], BENCH, RELAY, "relayed a second of CPU", "tok/s", "octet"),
        summary([where.router_memory() / 1e6], BENCH, "memory", "router", "MB", "octet"),
    ]


class _Callers:
    def __init__(self, where: RouterSite) -> None:
        self._router = aio.insecure_channel(where.router)
        self._replicas = {name: aio.insecure_channel(addresses[0]) for name, addresses in where.replicas.items()}
        self._numbers = count()
        self._topics: Iterator[tuple[str, str]] = cycle(_TOPICS.items())

    async def __aenter__(self) -> "_Callers":
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in (self._router, *self._replicas.values()):
            await channel.close()

    def routed(self, tokens: int, *, named: bool = False) -> Ask:
        """Every prompt is new, so that the classifier has not cached it. With `named`, it is not asked."""
        generate = self._router.unary_stream("/octet.v1.Inference/Generate")

        def ask() -> Any:
            name, prompt = self._question()
            force = [name] if named else []
            request = wire.InferRequest(prompt=prompt, force_specialists=force, max_tokens=tokens, ignore_eos=True)
            return generate(request.SerializeToString())

        return ask

    def hosed(self, tokens: int) -> Ask:
        generate = self._router.unary_stream("/octet.v1.Inference/Generate")
        request = wire.InferRequest(prompt="go", force_specialists=[HOSE], max_tokens=tokens).SerializeToString()
        return lambda: generate(request)

    def direct(self, tokens: int) -> Ask:
        calls = {name: each.unary_stream("/octet.v1.Specialist/Generate") for name, each in self._replicas.items()}

        def ask() -> Any:
            name, prompt = self._question()
            request = replica_wire.GenerateRequest(max_tokens=tokens, ignore_eos=True)
            request.chat.messages.add(role="user", content=prompt)
            return calls[name](request.SerializeToString())

        return ask

    def _question(self) -> tuple[str, str]:
        name, topic = next(self._topics)
        return name, f"{topic} (case {next(self._numbers)})"


async def _first_tokens(callers: _Callers, tokens: int, seconds: float, number: int) -> _Round:
    named = callers.routed(tokens, named=True)
    ways = {"direct": callers.direct(tokens), "routed": callers.routed(tokens), "named": named}
    order = Random(number).sample(list(ways), len(ways))
    return {way: await steady(call_of(ways[way]), RATE, seconds) for way in order}


def _first_token_records(case: str, rounds: list[_Round]) -> Iterator[BenchRecord]:
    for percent in (50, 99):
        found = {way: [percentile(each[way], percent) * 1e3 for each in rounds] for way in rounds[0]}
        yield summary(found["direct"], BENCH, case, f"first token of a replica, p{percent}", "ms", "limit")
        for way, shown in (
            ("routed", "added to the first token"),
            ("named", "added where the caller names the specialist"),
        ):
            added = [mine - bare for mine, bare in zip(found[way], found["direct"], strict=True)]
            yield summary(added, BENCH, case, f"{shown}, p{percent}", "ms", "octet")


async def _relay(where: RouterSite, callers: _Callers, tokens: int) -> tuple[float, float]:
    before = where.router_cpu()
    num_chunks, seconds = await at_once([callers.hosed(tokens)] * STREAMS)
    return num_chunks / seconds, num_chunks / (where.router_cpu() - before)
