"""An ensemble of three specialists, and traffic that produces every metric on the dashboard."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from octet.config.ensemble import (
    REJECT,
    CorrectnessConfig,
    Ensemble,
    IntentConfig,
    RouterConfig,
    ShadowConfig,
    SloTargets,
    SpecialistConfig,
    TaskConfig,
)
from router.routing.classifier.base import Distribution
from specialist.engines.sim.engine import CostModel
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, running_http_router
from tests.specialist.server.harness import QUICK, adapter_directory, running_replica, sim

SLOWLY = CostModel(0.004, 0.00001, 0.0, 0.004, 0.00002, 0.0, 0.0, 0.0)
TARGETS = SloTargets(ttft_p95=0.5, itl_p95=0.1, admission_to_first_token_p95=0.4)
_TALK = "the same beginning of every prompt, longer than a block of the cache; " * 3


class UnsureClassifier:
    """A classifier that is unsure between coder and helper."""

    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution:
        return Distribution((("coder", 0.45), ("helper", 0.4), ("writer", 0.1), (REJECT, 0.05)))

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        return self.cached(text)


def ensemble() -> Ensemble:
    """Return a configuration that evaluates every answer, so that a little traffic is enough for every metric."""
    names = ("writer", "coder", "helper")
    return Ensemble(
        specialists=tuple(SpecialistConfig(name, floor=0.1, max_running=2, slo=TARGETS) for name in names),
        tasks=(TaskConfig("default", temperature=0.0, max_tokens=24, top_p=1.0, repetition_penalty=1.0),),
        intents=(IntentConfig("build-fix"),),
        router=RouterConfig(default_timeout=2 * PATIENCE),
        correctness=CorrectnessConfig(sample_rate=1.0),
        shadow=ShadowConfig(budget=1.0, fresh_rate=1.0),
    )


@dataclass
class BusyEnsemble:
    fronted: HttpHarness
    url: str
    ended: list[int]
    """The status of every answer."""


@asynccontextmanager
async def busy_ensemble(folder: Path) -> AsyncIterator[BusyEnsemble]:
    """Run the ensemble and send traffic to it until the context exits. The specialist `writer` is easily overloaded."""
    adapter_directory(folder, "my-lora")
    async with (
        running_replica(sim(SLOWLY, max_running=2, num_blocks=24), max_waiting=1, adapter_root=folder) as writer,
        running_replica(sim(QUICK, name="coder"), adapter_root=folder) as coder,
        running_replica(sim(QUICK, name="helper"), adapter_root=folder) as helper,
        running_http_router(
            {"writer": [writer.address], "coder": [coder.address], "helper": [helper.address]},
            ensemble=ensemble(),
            opinions=UnsureClassifier(),
        ) as fronted,
    ):
        server = fronted.routed.server
        await fronted.routed.until(lambda: server.services.control.fleet_status.specialists["coder"].lane.lane_id)
        await server.services.control.load_adapter("coder", "my-lora", who="test", why="to be tried")
        busy = BusyEnsemble(fronted, f"http://127.0.0.1:{fronted.port}", [])
        callers = [asyncio.create_task(_call(busy, caller)) for caller in range(len(_CALLERS))]
        try:
            yield busy
        finally:
            for each in callers:
                each.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*callers)


def _asked(model: str, content: str = _TALK, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 24, **more}


_LOW = _asked("octet/writer", octet={"priority": 1})
_CALLERS: tuple[dict[str, Any], ...] = (
    *(_LOW,) * 6,
    _asked("octet/writer", octet={"priority": 9}),
    _asked("octet"),
    _asked("octet/coder"),
    _asked("octet/coder", content="far too long for a thread of the event loop " * 9),
    _asked("octet", octet={"intent": "build-fix"}),
    _asked("octet/absent"),
)


async def _call(busy: BusyEnsemble, caller: int) -> None:
    for number in count():
        answer = await busy.fronted.post(json.dumps(_CALLERS[caller]).encode())
        busy.ended.append(answer.status)
        await asyncio.sleep(0.1 if number % 5 else 0.5)
