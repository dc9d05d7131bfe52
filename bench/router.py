"""What the router adds: to the first token, to every token, and in memory."""

from collections.abc import Iterator
from itertools import count, cycle
from random import Random
from typing import Any

import uvloop
from grpc import aio

from bench.measure import percentile, summary
from bench.record import Record
from bench.router_choice import choice_records
from bench.router_decision import decision_records
from bench.router_hose import NAME as HOSE
from bench.router_load import Ask, at_once, call_of, steady
from bench.router_site import Site, site
from bench.table import Targets
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire

BENCH = "router"
_Round = dict[str, list[float]]
"""Seconds to the first token of each call, by way."""
RATE = 100
STREAMS = 64
WORDS = 1000
"""Tokens of an answer from the hose."""
ANSWERS = (4, 16)
"""Tokens of an answer at a steady rate. With the longer ones replicas and callers fill the core they share."""
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


_ADDED = {"routed": "added to the first token", "named": "added where the caller names the specialist"}
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


def measure(runs: int, *, quick: bool) -> list[Record]:
    """Raises SiteFailed."""
    with site() as where:
        records = uvloop.run(_measure(where, runs, 1.0 if quick else 6.0, WORDS // 10 if quick else WORDS))
    return [*records, *decision_records(runs), *choice_records(runs)]


async def _measure(where: Site, runs: int, seconds: float, tokens: int) -> list[Record]:
    async with _Callers(where) as callers:
        await steady(call_of(callers.routed(ANSWERS[0])), RATE, 1.0)
        rounds = {
            tokens: [await _first_tokens(callers, tokens, seconds, number) for number in range(runs)]
            for tokens in ANSWERS
        }
        relays = [await _relay(where, callers, tokens) for _ in range(runs)]
    first = [record for tokens in ANSWERS for record in _first_token_records(steady_case(tokens), rounds[tokens])]
    return [*first, *_relay_records(relays), _memory(where)]


class _Callers:
    """Calls to the router, and the same ones straight to a replica."""

    def __init__(self, where: Site) -> None:
        self._router = aio.insecure_channel(where.router)
        self._replicas = {name: aio.insecure_channel(addresses[0]) for name, addresses in where.replicas.items()}
        self._numbers = count()
        self._topics: Iterator[tuple[str, str]] = cycle(_TOPICS.items())

    async def __aenter__(self) -> "_Callers":
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in (self._router, *self._replicas.values()):
            await channel.close()

    def routed(self, tokens: int) -> Ask:
        """A new text every time: the classifier cannot have seen it."""
        generate = self._router.unary_stream("/octet.v1.Inference/Generate")

        def ask() -> Any:
            _, prompt = self._question()
            request = wire.InferRequest(prompt=prompt, max_tokens=tokens, ignore_eos=True)
            return generate(request.SerializeToString())

        return ask

    def named(self, tokens: int) -> Ask:
        """Without a question to the classifier."""
        generate = self._router.unary_stream("/octet.v1.Inference/Generate")

        def ask() -> Any:
            name, prompt = self._question()
            request = wire.InferRequest(prompt=prompt, force_specialists=[name], max_tokens=tokens, ignore_eos=True)
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
    """In an order that changes from round to round."""
    ways = {"direct": callers.direct(tokens), "routed": callers.routed(tokens), "named": callers.named(tokens)}
    order = Random(number).sample(list(ways), len(ways))
    return {way: await steady(call_of(ways[way]), RATE, seconds) for way in order}


def _first_token_records(case: str, rounds: list[_Round]) -> Iterator[Record]:
    for percent in (50, 99):
        found = {way: [percentile(each[way], percent) * 1e3 for each in rounds] for way in rounds[0]}
        yield summary(found["direct"], BENCH, case, f"first token of a replica, p{percent}", "ms", "limit")
        for way, shown in (
            ("routed", "added to the first token"),
            ("named", "added where the caller names the specialist"),
        ):
            added = [mine - bare for mine, bare in zip(found[way], found["direct"], strict=True)]
            yield summary(added, BENCH, case, f"{shown}, p{percent}", "ms", "octet")


async def _relay(where: Site, callers: _Callers, tokens: int) -> tuple[float, float]:
    """Tokens a second, and tokens a second of the router's CPU."""
    before = where.router_cpu()
    num_chunks, seconds = await at_once([callers.hosed(tokens)] * STREAMS)
    return num_chunks / seconds, num_chunks / (where.router_cpu() - before)


def _relay_records(relays: list[tuple[float, float]]) -> Iterator[Record]:
    yield summary([all_of_it for all_of_it, _ in relays], BENCH, RELAY, "relayed", "tok/s", "octet")
    yield summary([by_core for _, by_core in relays], BENCH, RELAY, "relayed a second of CPU", "tok/s", "octet")


def _memory(where: Site) -> Record:
    return summary([where.router_memory() / 1e6], BENCH, "memory", "router", "MB", "octet")
