"""Routers with scripted replicas. A test can switch a replica between good and bad answers while it serves."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from octet.config.ensemble import (
    CorrectnessConfig,
    Ensemble,
    RouterConfig,
    ShadowConfig,
    SpecialistConfig,
    StoreConfig,
    TaskConfig,
)
from octet.rpc.handlers import Context
from octet.v1 import inference_pb2
from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire
from tests.patience import PATIENCE
from tests.router.serving.harness import CallResult, RouterHarness, running_router
from tests.router.serving.spy import SpyReplica, running_spy

GOOD = "```cpp\nint twice(int x) { return 2 * x; }\n```"
UNCOMPILABLE = "```cpp\nint twice(int x) { return 2 * y }\n```"
BAD = " \n"


class ScriptedReplica:
    """A replica that answers with `text`, which a test sets to GOOD or BAD."""

    def __init__(self, specialist: str) -> None:
        self.specialist = specialist
        self.text = GOOD
        self.num_shadows = 0

    async def behave(self, request: replica_wire.GenerateRequest, context: Context) -> None:
        self.num_shadows += request.shadow
        lane = replica_wire.Lane(specialist=self.specialist, revision="0" * 64)
        accepted = replica_wire.Accepted(lane=lane, prompt_tokens=1, max_tokens=64)
        await context.write(replica_wire.GenerateEvent(accepted=accepted))
        await context.write(replica_wire.GenerateEvent(chunk=replica_wire.Chunk(text=self.text, token_ids=[1])))
        usage = replica_wire.Usage(finish_reason=replica_wire.FINISH_REASON_STOP, completion_tokens=1)
        await context.write(replica_wire.GenerateEvent(usage=usage))


@dataclass
class Replicas:
    scripts: dict[str, ScriptedReplica]
    spies: dict[str, SpyReplica]

    @property
    def addresses(self) -> dict[str, list[str]]:
        return {name: [spy.address] for name, spy in self.spies.items()}


@asynccontextmanager
async def running_replicas(*names: str) -> AsyncIterator[Replicas]:
    scripts = {name: ScriptedReplica(name) for name in names}
    async with AsyncExitStack() as stack:
        spies = {name: await stack.enter_async_context(running_spy(script.behave)) for name, script in scripts.items()}
        yield Replicas(scripts, spies)


def ensemble(url: str, correctness: CorrectnessConfig, verify: str = "non_empty", **more: Any) -> Ensemble:
    """Return an ensemble in which the answers of `writer` are evaluated against a floor, and `editor` is the fallback
    of `writer`."""
    return Ensemble(
        specialists=(
            SpecialistConfig("writer", verify=verify, floor=0.8, fallback="editor"),
            SpecialistConfig("editor", verify="none"),
        ),
        tasks=(TaskConfig("default", temperature=0.0, max_tokens=64, top_p=1.0, repetition_penalty=1.0),),
        router=RouterConfig(default_timeout=2 * PATIENCE),
        correctness=correctness,
        shadow=ShadowConfig(demoted_rate=1.0, fresh_rate=1.0, budget=1.0),
        store=StoreConfig(url=url),
        default="writer",
        **more,
    )


class UnavailableClassifier:
    """A classifier that always fails, so that every request goes to the default specialist."""

    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> None:
        return None

    async def classify(self, text: str, tenant: str = "") -> Any:
        from router.routing.classifier.base import ClassifierUnavailable

        raise ClassifierUnavailable("no classifier is configured")


@asynccontextmanager
async def router(replicas: Replicas, settings: Ensemble) -> AsyncIterator[RouterHarness]:
    async with running_router(replicas.addresses, ensemble=settings, opinions=UnavailableClassifier()) as routed:
        yield routed


async def ask(routed: RouterHarness, text: str = "twice, please", **fields: Any) -> CallResult:
    return await routed.ask(inference_pb2.InferRequest(prompt=text, max_tokens=64, **fields))


async def answerer(routed: RouterHarness) -> str:
    received = await ask(routed)
    return received.receipt.specialist if received.code is grpc.StatusCode.OK and received.receipt is not None else ""


async def ask_until(routed: RouterHarness, name: str, seconds: float = PATIENCE) -> list[str]:
    """Send requests until `name` answers. Return the specialists that answered, in order."""
    seen: list[str] = []
    end = time.monotonic() + seconds
    while not seen or seen[-1] != name:
        assert time.monotonic() < end, f"{name} never answered; the last of {len(seen)} answers came from {seen[-3:]}"
        seen.append(await answerer(routed))
        await asyncio.sleep(0.05)
    return seen


async def operate(routed: RouterHarness, name: str, request: Any, answer: Any) -> Any:
    """Return the result of a method of the operator service. Raises AioRpcError if the call fails."""
    method = routed.channel.unary_unary(
        f"/octet.v1.Operator/{name}", type(request).SerializeToString, answer.FromString
    )
    return await method(request)


async def breaker(routed: RouterHarness, specialist: str = "writer") -> wire.BreakerInfo:
    listed = await operate(routed, "ListBreakers", wire.ListBreakersRequest(), wire.ListBreakersResponse)
    found: wire.BreakerInfo = next(each for each in listed.breakers if each.specialist == specialist)
    return found


async def audit(routed: RouterHarness) -> list[wire.AuditEntry]:
    """Return the audit entries, oldest first."""
    method = routed.channel.unary_stream(
        "/octet.v1.Operator/ListAudit", wire.ListAuditRequest.SerializeToString, wire.AuditEntry.FromString
    )
    return [entry async for entry in method(wire.ListAuditRequest(most=1000))][::-1]


async def until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Poll until the condition returns, or resolves to, a true value."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
