"""The same load on one endpoint or on several, in turns."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import uvloop

from bench.serving.answer import Caller
from bench.serving.asks import Ask, Source, asks_of
from bench.serving.classes import CallerClass
from bench.serving.grpc_caller import GrpcCaller
from bench.serving.http import parse_origin
from bench.serving.load import Round, play
from bench.serving.openai_caller import OpenAICaller
from bench.serving.site import MODEL, Engine, own_site
from bench.serving.usage import ServeMistake
from octet.sdk.api_key import is_local

Say = Callable[[str], None]
_WARM_UP = 4


@dataclass(frozen=True, slots=True)
class Own:
    """An ensemble that is started for the bench."""

    engine: Engine
    replicas: int
    doors: tuple[str, ...]
    """Of http and grpc."""
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    kind: str
    """http or grpc."""
    where: str
    model: str
    name: str


@dataclass(frozen=True, slots=True)
class Options:
    source: Source
    classes: tuple[CallerClass, ...]
    own: Own | None
    endpoints: tuple[Endpoint, ...]
    seconds: float
    runs: int
    seed: int
    context: int
    key: str | None = None
    give_up: float = 120.0
    """Seconds after which a caller hangs up."""


@dataclass(frozen=True, slots=True)
class Findings:
    rounds: list[Round]
    notes: list[str]


def measure_serve(options: Options, say: Say) -> Findings:
    """Raises SiteFailed, ServeMistake."""
    with ExitStack() as stack:
        endpoints = list(options.endpoints)
        if options.own is not None:
            own = options.own
            say(f"starting an ensemble of {own.file or own.engine}")
            site = stack.enter_context(own_site(own.engine, own.replicas, own.file))
            model = MODEL if own.file is None else "octet"
            ours = {"http": (f"{site.http}/v1", "octet"), "grpc": (site.grpc, "octet grpc")}
            endpoints = [Endpoint(door, ours[door][0], model, ours[door][1]) for door in own.doors] + endpoints
        return uvloop.run(_measure(named_apart(endpoints), options, say))


def named_apart(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """The same name twice would be one system: they are told apart by their models, and then by number."""
    names = [each.name for each in endpoints]
    fuller = [each.name if names.count(each.name) == 1 else f"{each.name} {each.model}" for each in endpoints]
    counted = [
        name if fuller.count(name) == 1 else f"{name} ({fuller[: index + 1].count(name)})"
        for index, name in enumerate(fuller)
    ]
    return [Endpoint(each.kind, each.where, each.model, name) for each, name in zip(endpoints, counted, strict=True)]


async def _measure(endpoints: Sequence[Endpoint], options: Options, say: Say) -> Findings:
    async with AsyncExitStack() as stack:
        callers: dict[str, Caller] = {}
        notes = []
        for endpoint in endpoints:
            caller = caller_of(endpoint, options)
            stack.push_async_callback(caller.close)
            notes.append(f"{endpoint.name}: {endpoint.where}, {endpoint.model}: {await caller.check()}")
            callers[endpoint.name] = caller
        warm_up = [replace(ask, at=0.0) for ask in _asks(options, -1)[:_WARM_UP]]
        for name, caller in callers.items():
            say(f"{len(warm_up)} requests to {name} that do not count")
            await play(name, caller, warm_up, 1.0)
        rounds = []
        for number in range(options.runs):
            rounds += await _round(number, callers, options, partial(_of, number, options.runs, say))
        return Findings(rounds, notes)


async def _round(number: int, callers: dict[str, Caller], options: Options, say: Say) -> list[Round]:
    """All get the same asks, in an order that changes; each system after the answers of the one before."""
    asks = _asks(options, number)
    order = Random(number).sample(list(callers), len(callers))
    found = {}
    for name in order:
        say(f"{len(asks)} requests to {name}")
        found[name] = await play(name, callers[name], asks, options.seconds)
    return [found[name] for name in callers]


def _asks(options: Options, number: int) -> list[Ask]:
    return asks_of(options.source, options.classes, options.seconds, options.seed + number, options.context)


def _of(number: int, runs: int, say: Say, what: str) -> None:
    say(f"round {number + 1} of {runs}: {what}")


def caller_of(endpoint: Endpoint, options: Options) -> Caller:
    if endpoint.kind == "grpc":
        _check_key(options.key, endpoint.where, encrypted=False)
        return GrpcCaller(endpoint.where, endpoint.model, options.key, options.give_up)
    origin = parse_origin(endpoint.where)
    _check_key(options.key, origin.name, encrypted=origin.scheme == "https")
    return OpenAICaller(origin, endpoint.model, options.key, options.give_up)


def _check_key(key: str | None, where: str, *, encrypted: bool) -> None:
    if key is not None and not encrypted and not is_local(where):
        raise ServeMistake(f"the key would be sent to {where} in the clear: use https")
