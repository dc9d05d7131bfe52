"""A router with gRPC and HTTP, its scripted replicas, and the operator's side of an incident."""

import asyncio
import json
import re
import shlex
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import grpc

from octet.cli import main as octet
from octet.clock import SystemClock
from octet.config.ensemble import SloConfig
from octet.config.loader import read_ensemble
from octet.config.reload import ConfigWatch
from octet.v1 import inference_pb2
from octet.v1 import operator_pb2 as wire
from octet.v1 import specialist_pb2 as replica_wire
from router.routing.classifier.queue import open_classifier_queue
from router.server import RouterServer
from router.settings import HttpSettings, RouterSettings
from tests.incidents.ensembles import CONFIG
from tests.incidents.fast_clock import observe_faster
from tests.incidents.own_time import own_time
from tests.incidents.runbook import Section, sections
from tests.incidents.scripted_specialist import ScriptedSpecialist
from tests.incidents.waiting import until
from tests.patience import PATIENCE
from tests.router.serving.harness import CallResult, RouterHarness
from tests.specialist.server.harness import ReplicaHarness, adapter_directory
from tests.specialist.server.harness import running_replica as replica_serving

_ID = re.compile(r"\b[0-9a-f]{32}\b")
_CHANGE = wire.Change(who="somebody", why="an incident")


@dataclass
class Rehearsal:
    routed: RouterHarness
    replicas: dict[str, list[ReplicaHarness]]
    config: Path
    runbook: Section

    async def ask(self, text: str, **fields: Any) -> CallResult:
        given = {"prompt": text, "max_tokens": 64, **fields}
        return await self.routed.ask(inference_pb2.InferRequest(**given))

    async def operate(self, name: str, request: Any, answer: Any) -> Any:
        """Call a method of the operator service. Raises AioRpcError if the call fails."""
        path = f"/octet.v1.Operator/{name}"
        method = self.routed.channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        return await method(request)

    async def drain(self, replica: str) -> None:
        await self.operate("DrainReplica", wire.DrainReplicaRequest(replica=replica, change=_CHANGE), wire.ReplicaInfo)

    async def refresh_badly(self, specialist: ScriptedSpecialist) -> None:
        """Load and promote an adapter whose answers are wrong."""
        specialist.make_bad(adapter_directory(self.config.parent, "refresh"))
        load = wire.LoadLaneRequest(specialist=specialist.name, path="refresh", change=_CHANGE)
        await self.operate("LoadAdapter", load, wire.LaneInfo)
        promote = wire.PromoteLaneRequest(specialist=specialist.name, change=_CHANGE)
        await self.operate("PromoteLane", promote, wire.LaneInfo)

    def load(self, specialist: str) -> replica_wire.LoadReport:
        (served,) = self.replicas[specialist]
        return served.server.publisher.report()

    async def breaker(self, specialist: str) -> wire.BreakerInfo:
        listed = await self.operate("ListBreakers", wire.ListBreakersRequest(), wire.ListBreakersResponse)
        found: wire.BreakerInfo = next(each for each in listed.breakers if each.specialist == specialist)
        return found

    async def shadows(self) -> list[wire.ShadowRow]:
        report = await self.operate("ShadowReport", wire.ShadowReportRequest(), wire.ShadowReportResponse)
        return list(report.rows)

    async def slo(self, specialist: str) -> wire.Slo:
        shown = await self.operate("GetSlo", wire.GetSloRequest(specialist=specialist), wire.GetSloResponse)
        (found,) = shown.slos
        slo: wire.Slo = found
        return slo

    def judged(self, specialist: str) -> Callable[[], Coroutine[Any, Any, bool]]:
        """Return a condition that is true once the breaker has enough evaluated answers from the specialist to
        decide."""

        async def enough() -> bool:
            breaker = await self.breaker(specialist)
            return breaker.samples >= breaker.min_samples

        return enough

    async def overview(self) -> wire.Overview:
        found: wire.Overview = await self.operate("GetOverview", wire.GetOverviewRequest(), wire.Overview)
        return found

    async def page(self) -> Any:
        """Return the overview that the dashboard reads."""
        http = self.routed.server.http
        assert http is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        try:
            writer.write(b"GET /v1/overview HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        assert b" 200 " in head.splitlines()[0], head
        return json.loads(body)

    async def view(self, specialist: str) -> wire.SpecialistView:
        found: wire.SpecialistView = next(
            each for each in (await self.overview()).specialists if each.name == specialist
        )
        return found

    async def trouble(self, kind: str, subject: str) -> wire.Trouble | None:
        """Return the trouble of this kind and subject from the overview, or None if it is not there."""
        troubles = (await self.overview()).troubles
        return next((each for each in troubles if (each.kind, each.subject) == (kind, subject)), None)

    async def until_shown(self, kind: str, subject: str, runbook: str = "") -> wire.Trouble:
        """Return the trouble once the overview shows it with this section of the runbook, by default the rehearsed
        section."""

        async def shown() -> wire.Trouble | None:
            found = await self.trouble(kind, subject)
            return found if found is not None and found.runbook == (runbook or self.runbook.anchor) else None

        found: wire.Trouble = await until(shown, self.describe)
        assert found.text and found.since_unix_ms > 0
        return found

    async def until_first(self, kind: str, subject: str) -> None:
        """Wait until the trouble is the headline of the dashboard and of `octet top`."""

        async def first() -> bool:
            page, shown = await self.page(), await self.top()
            worst = page["troubles"][0] if page["troubles"] else {"kind": "", "subject": ""}
            is_it = (worst["kind"], worst["subject"]) == (kind, subject) and page["headline"].startswith(worst["text"])
            return is_it and shown.splitlines()[1].startswith(f"{worst['severity']}: {subject}: ")

        await until(first, self.describe)

    async def top(self) -> str:
        """Return the output of `octet top` without a terminal."""
        return await self._run("octet top")

    async def until_gone(self, *kinds: str, subject: str) -> None:
        async def gone() -> bool:
            return not any(each.kind in kinds and each.subject == subject for each in (await self.overview()).troubles)

        await until(gone, self.describe)

    async def describe(self) -> str:
        """Return a description of all troubles, for the message of a failed test."""
        overview = await self.overview()
        return "\n".join(f"{each.kind} {each.subject} ({each.runbook}): {each.text}" for each in overview.troubles)

    async def look(self, request_id: str = "") -> dict[str, str]:
        """Run the section's read-only commands. Return the output of each command. `request_id` replaces the example id
        in the runbook."""
        return {line: await self._run(_ID.sub(request_id, line)) for line in self.runbook.looks}

    async def command(self, beginning: str) -> str:
        """Run the section's command that starts with these words. Return its output."""
        return await self._run(self.runbook.command(beginning))

    async def _run(self, line: str) -> str:
        said = StringIO()

        words = shlex.split(line)[1:]
        where = [] if words[0] == "check" else ["--address", self.routed.address]

        def run() -> int:
            with redirect_stdout(said), redirect_stderr(said), chdir(self.config.parent):
                return octet([*words, *where])

        status = await asyncio.to_thread(run)
        assert status == 0, f"{line}: {said.getvalue()}"
        return said.getvalue()


@asynccontextmanager
async def rehearse(
    folder: Path,
    specialists: Sequence[ScriptedSpecialist],
    runbook: str,
    config: str = CONFIG,
    speed: float = 90.0,
    follows: bool = False,
) -> AsyncIterator[Rehearsal]:
    """Run the ensemble. `folder` holds its configuration and its adapters. `runbook` is the anchor of the rehearsed
    section. The overview's clock runs `speed` times faster. With `follows`, the router reloads the configuration when
    the file changes, and from then on uses the SLO windows in the file."""
    path = folder / "ensemble.yaml"
    path.write_text(config)
    # These windows are shorter than a configuration file permits.
    ensemble = replace(read_ensemble(path), slo=SloConfig(window=1.0, long_window=2.0))
    async with AsyncExitStack() as stack:
        stack.enter_context(own_time())
        replicas = {
            specialist.name: [
                await stack.enter_async_context(
                    replica_serving(specialist.replica(), adapter_root=folder, max_waiting=specialist.max_waiting)
                )
                for _ in range(specialist.replicas)
            ]
            for specialist in specialists
        }
        stack.enter_context(observe_faster(speed))
        opinions = await stack.enter_async_context(open_classifier_queue(ensemble, SystemClock()))
        places = {name: tuple(each.address for each in group) for name, group in replicas.items()}
        server = RouterServer(ensemble, RouterSettings(replicas=places, http=HttpSettings()), opinions)
        await server.start()
        stack.push_async_callback(server.stop, 0)
        if follows:
            server.follow(ConfigWatch(path, ensemble))
        async with asyncio.timeout(PATIENCE):
            await server.warm()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{server.port}"))
        yield Rehearsal(RouterHarness(server, channel), replicas, path, sections()[runbook])
