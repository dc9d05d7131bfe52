"""The router's overhead: on the first token, on every token, in memory, and for a decision."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count, product
from random import Random
from time import perf_counter
from typing import Any

import uvloop
from grpc import aio

from bench import router_site
from bench.router_peers.cases import Order
from bench.router_site import FASTEST, REPLICA, ROUTER, TOPICS, Ask, RouterSite
from bench.timing import Board, Targets
from octet.clock import SystemClock
from octet.config.loader import default_ensemble
from octet.v1 import inference_pb2 as wire
from router.request import Tracer
from router.routing.classifier.queue import open_classifier_queue
from router.routing.policy import RoutingPolicy
from router.routing.validation import RequestValidator
from simulation.results import BenchRecord, percentile

BENCH = "router"
RATE = 100
STREAMS = 64
WORDS = 1000  # tokens of an answer of the fastest replica
ANSWERS = (4, 16)  # tokens of an answer; with the longer ones, replicas and callers fill their cores
RELAY = f"{STREAMS} streams at once, a token a message"
DECISION = "a decision"
_DECISIONS = 200
_ADDED = {"routed": "added to the first token", "named": "added where the caller names the specialist"}
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
    board = Board(BENCH, ("limit", "octet"))
    with router_site.site() as where:
        uvloop.run(_measure(where, runs, 1.0 if quick else 6.0, WORDS // 10 if quick else WORDS, board))
    uvloop.run(_decide(runs, board))
    return board.records()


async def _decide(runs: int, board: Board) -> None:
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
    async with open_classifier_queue(ensemble, clock) as opinions:

        async def decide(prompt: str) -> float:
            message = wire.InferRequest(prompt=prompt)
            start = perf_counter()
            await policy.classify_and_decide(validator.validate(message, None, None), opinions)
            return (perf_counter() - start) * 1e3

        await decide(question)
        for number, (name, prompt) in product(range(runs), prompts.items()):
            p50 = percentile([await decide(prompt()) for _ in range(_DECISIONS)], 50)
            board.add(number, DECISION, "octet", [(f"{name}, p50", "ms", p50)])


async def _measure(where: RouterSite, runs: int, seconds: float, words: int, board: Board) -> None:
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(aio.insecure_channel(where.router))
        replicas = {
            name: (await stack.enter_async_context(aio.insecure_channel(address))).unary_stream(REPLICA)
            for name, (address, *_) in where.replicas.items()
        }
        questions = router_site.new_questions()

        def direct(tokens: int) -> Ask:
            def ask() -> Any:
                name, prompt = next(questions)
                return replicas[name](router_site.replica_request(prompt, tokens))

            return ask

        warm_up = router_site.router_ask(router, questions, ANSWERS[0], named=False)
        await router_site.steady(partial(router_site.first_chunk, warm_up), RATE, 1.0)
        for number, tokens in product(range(runs), ANSWERS):
            paths = {
                "direct": direct(tokens),
                "routed": router_site.router_ask(router, questions, tokens, named=False),
                "named": router_site.router_ask(router, questions, tokens),
            }
            order = Random(number).sample(list(paths), len(paths))
            calls = {path: partial(router_site.first_chunk, paths[path]) for path in order}
            found = {path: await router_site.steady(call, RATE, seconds) for path, call in calls.items()}
            _add_first_tokens(board, number, tokens, found)
        for number in range(runs):
            board.add(number, RELAY, "octet", await _relay(where, router, words))
    board.add(0, "memory", "octet", [("router", "MB", where.router_memory() / 1e6)])


def _add_first_tokens(board: Board, number: int, tokens: int, found: Mapping[str, Sequence[float]]) -> None:
    """Record the direct times until the first token, and what each other path adds to them."""
    case = steady_case(tokens)
    for percent in (50, 99):
        at = {path: percentile(each, percent) * 1e3 for path, each in found.items()}
        board.add(number, case, "limit", [(f"first token of a replica, p{percent}", "ms", at["direct"])])
        for path, shown in _ADDED.items():
            board.add(number, case, "octet", [(f"{shown}, p{percent}", "ms", at[path] - at["direct"])])


async def _relay(where: RouterSite, router: Any, words: int) -> list[tuple[str, str, float]]:
    generate = router.unary_stream(ROUTER)
    request = router_site.infer_request(str(Order(words, joins=False)), words, FASTEST)
    before = where.router_cpu()
    num_chunks, seconds = await router_site.at_once([lambda: generate(request)] * STREAMS)
    cpu = where.router_cpu() - before
    return [("relayed", "tok/s", num_chunks / seconds), ("relayed per CPU second", "tok/s", num_chunks / cpu)]
