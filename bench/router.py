"""The router's overhead: on the first token, on every token, in memory, and for a decision."""

from collections.abc import Callable, Iterator
from itertools import count, cycle
from random import Random
from time import perf_counter
from typing import Any, Self

import uvloop
from grpc import aio

from bench.router_peers.orders import Order
from bench.router_replicas import FASTEST
from bench.router_site import (
    REPLICA,
    ROUTER,
    TOPICS,
    Ask,
    RouterSite,
    at_once,
    call_of,
    infer_request,
    replica_request,
    site,
    steady,
)
from bench.timing import Targets
from octet.clock import SystemClock
from octet.config.loader import default_ensemble
from octet.v1 import inference_pb2 as wire
from router.request import Tracer
from router.routing.classifier.queue import open_classifier_queue
from router.routing.policy import RoutingPolicy
from router.routing.validation import RequestValidator
from simulation.results import BenchRecord, percentile, summary

BENCH = "router"
_Round = dict[str, list[float]]  # seconds to the first token, by path
RATE = 100
STREAMS = 64
WORDS = 1000  # tokens of an answer of the fastest replica
ANSWERS = (4, 16)  # tokens of an answer; with the longer ones, replicas and callers fill their cores
RELAY = f"{STREAMS} streams at once, a token a message"
DECISION = "a decision"
_DECISIONS = 200
_LINKER = "main.cpp:(.text+0x1f): undefined reference to `vtable for Shape'\ncollect2: error: ld returned 1 exit status"
_LONG = "for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * weights[i];\n" * 2500


def steady_case(tokens: int) -> str:
    return f"{RATE} requests/s, {tokens} tokens"


TARGETS: Targets = {
    **{(steady_case(tokens), "added to the first token, p50"): "<= 2 ms" for tokens in ANSWERS},
    **{(steady_case(tokens), "added to the first token, p99"): "<= 13 ms" for tokens in ANSWERS},
    (RELAY, "relayed"): ">= 10,000 tok/s",
    ("memory", "router"): "< 150 MB",
    (DECISION, "by the classifier, p50"): "< 1 ms",
    (DECISION, "from the cache, p50"): "< 0.2 ms",
    (DECISION, "by rule, p50"): "< 0.2 ms",
}


def measure(runs: int, *, quick: bool) -> list[BenchRecord]:
    with site() as where:
        records = uvloop.run(_measure(where, runs, 1.0 if quick else 6.0, WORDS // 10 if quick else WORDS))
    decisions = uvloop.run(_decide(runs))
    records += [summary(each, BENCH, DECISION, f"{how}, p50", "ms", "octet") for how, each in decisions.items()]
    return records


async def _decide(runs: int) -> dict[str, list[float]]:
    """Return milliseconds, the median of each round."""
    numbers, question = count(), TOPICS["concurrency"]
    prompts: dict[str, Callable[[], str]] = {
        "by the classifier": lambda: f"{question} (case {next(numbers)})",
        "by the classifier, 200 KB": lambda: f"{_LONG} (case {next(numbers)})",
        "from the cache": lambda: question,
        "by rule": lambda: f"{_LINKER} (case {next(numbers)})",
    }
    ensemble, clock = default_ensemble(), SystemClock()
    policy = RoutingPolicy(ensemble)
    validator = RequestValidator(clock, lambda: "bench", Tracer(bytes), default_timeout=60.0)
    samples: dict[str, list[float]] = {name: [] for name in prompts}
    async with open_classifier_queue(ensemble, clock) as opinions:

        async def decide(prompt: str) -> float:
            message = wire.InferRequest(prompt=prompt)
            start = perf_counter()
            await policy.classify_and_decide(validator.validate(message, None, None), opinions)
            return (perf_counter() - start) * 1e3

        await decide(question)
        for _ in range(runs):
            for name, prompt in prompts.items():
                samples[name].append(percentile([await decide(prompt()) for _ in range(_DECISIONS)], 50))
    return samples


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
    """Callers that send new prompts only, so that the classifier has not cached them."""

    def __init__(self, where: RouterSite) -> None:
        self._router = aio.insecure_channel(where.router)
        self._replicas = {name: aio.insecure_channel(addresses[0]) for name, addresses in where.replicas.items()}
        self._generate = self._router.unary_stream(ROUTER)
        self._numbers = count()
        self._topics = cycle(TOPICS.items())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in (self._router, *self._replicas.values()):
            await channel.close()

    def routed(self, tokens: int, *, named: bool = False) -> Ask:
        def ask() -> Any:
            name, prompt = self._question()
            return self._generate(infer_request(prompt, tokens, name if named else ""))

        return ask

    def direct(self, tokens: int) -> Ask:
        calls = {name: each.unary_stream(REPLICA) for name, each in self._replicas.items()}

        def ask() -> Any:
            name, prompt = self._question()
            return calls[name](replica_request(prompt, tokens))

        return ask

    def fastest(self, tokens: int) -> Ask:
        request = infer_request(str(Order(tokens, joins=False)), tokens, FASTEST)
        return lambda: self._generate(request)

    def _question(self) -> tuple[str, str]:
        name, topic = next(self._topics)
        return name, f"{topic} (case {next(self._numbers)})"


async def _first_tokens(callers: _Callers, tokens: int, seconds: float, number: int) -> _Round:
    named = callers.routed(tokens, named=True)
    paths = {"direct": callers.direct(tokens), "routed": callers.routed(tokens), "named": named}
    order = Random(number).sample(list(paths), len(paths))
    return {path: await steady(call_of(paths[path]), RATE, seconds) for path in order}


def _first_token_records(case: str, rounds: list[_Round]) -> Iterator[BenchRecord]:
    for percent in (50, 99):
        found = {path: [percentile(each[path], percent) * 1e3 for each in rounds] for path in rounds[0]}
        yield summary(found["direct"], BENCH, case, f"first token of a replica, p{percent}", "ms", "limit")
        for path, shown in (
            ("routed", "added to the first token"),
            ("named", "added where the caller names the specialist"),
        ):
            added = [mine - bare for mine, bare in zip(found[path], found["direct"], strict=True)]
            yield summary(added, BENCH, case, f"{shown}, p{percent}", "ms", "octet")


async def _relay(where: RouterSite, callers: _Callers, tokens: int) -> tuple[float, float]:
    before = where.router_cpu()
    num_chunks, seconds = await at_once([callers.fastest(tokens)] * STREAMS)
    return num_chunks / seconds, num_chunks / (where.router_cpu() - before)
