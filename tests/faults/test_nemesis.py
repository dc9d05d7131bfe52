"""Row 17, and everything at once: random trouble for ten minutes, from a seed that is printed."""

import asyncio
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from random import Random

import pytest

from tests.faults.audit import auditing
from tests.faults.callers import Callers, golden_run, line, until
from tests.faults.cgroups import Cgroup, cgroup, want_of_cgroups
from tests.faults.figures import Figure, is_long, put_seed
from tests.faults.history import History
from tests.faults.nemesis import Nemesis, of_cable, of_cpu, of_memory, of_process, of_proxy, of_router, one_is_spared
from tests.faults.network import Cable, cables, want_of_cables
from tests.faults.proxy import proxying
from tests.faults.site import Host, Plan, Site, site
from tests.faults.verdict import put_verdict, until_serving
from tests.forbidden import do_without
from tests.ports import free_port

SEED, SECONDS = "OCTET_FAULTS_SEED", "OCTET_FAULTS_SECONDS"
"""Of the environment: to have the same trouble again, and for how long."""
FOR_ALL = 300.0
"""Seconds in which every kind of trouble comes."""
ROOM = 96 << 20
"""Bytes of memory that the second poet may have beyond what it begins with."""


@dataclass(frozen=True, slots=True)
class Scene:
    site: Site
    cable: Cable | None
    """To the first writer."""
    port: int
    """The last writer is reached by it, through a proxy."""
    cgroups: dict[str, Cgroup]
    memory: Cgroup | None
    """Of the second poet."""


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A writer behind a cable, one beside it, one behind a proxy, and two poets. What cannot be had here is left out,
    and said."""
    with ExitStack() as stack:
        port = free_port()
        hosts = {"writer-2": Host(seen_as=f"127.0.0.1:{port}")}
        cable, memory, cgroups = None, None, {}
        if reason := want_of_cables():
            do_without(reason)
        else:
            (cable,) = stack.enter_context(cables(1))
            hosts["writer-0"] = Host(cable.before, f"{cable.there}:50151")
        if reason := want_of_cgroups("cpu", "memory"):
            do_without(reason)
        else:
            cgroups = {name: stack.enter_context(cgroup("cpu")) for name in ("writer-1", "poet-0")}
            memory = stack.enter_context(cgroup("memory"))
            hosts |= {name: Host(cgroups=(each.folder,)) for name, each in (*cgroups.items(), ("poet-1", memory))}
        settings = "dispatch: {max_cool_down: 2s}\n"
        door = ("--port", str(free_port()), "--http-port", str(free_port()))
        plan = Plan({"writer": 3, "poet": 2}, settings, hosts=hosts, router_options=door)
        made = stack.enter_context(site(plan, wait=False))
        yield Scene(made, cable, port, cgroups, memory)


def test_17_nobody_is_told_anything_untrue_whatever_happens(scene: Scene, figure: Figure) -> None:
    seed = int(os.environ.get(SEED) or secrets.randbits(32))
    seconds = float(os.environ.get(SECONDS) or (600 if is_long() else 10))
    print(f"{SEED}={seed}, {seconds:g} s")
    put_seed(17, seed)
    asyncio.run(_story(scene, seed, seconds, figure))


async def _story(scene: Scene, seed: int, seconds: float, figure: Figure) -> None:
    site, replicas = scene.site, {each.name: each for each in scene.site.replicas}
    async with AsyncExitStack() as stack:
        behind = replicas["writer-2"]
        proxy = await stack.enter_async_context(proxying(scene.port, behind.socket))
        await asyncio.to_thread(site.ready)
        router = await stack.enter_async_context(line(site.address, patient=True))
        history = History(await golden_run(router, site.specialists))
        troubles = [trouble for each in site.replicas for trouble in of_process(each.name, each.process)]
        troubles += of_router(site.router, history.outages)
        troubles += of_proxy(behind, proxy)
        troubles += [trouble for name, each in scene.cgroups.items() for trouble in of_cpu(replicas[name], each)]
        if scene.cable is not None:
            troubles += of_cable(replicas["writer-0"], scene.cable)
        if scene.memory is not None:
            scene.memory.allow_memory(scene.memory.memory + ROOM)
            troubles += of_memory(replicas["poet-1"], scene.memory, site.folder)
        groups = {name: [each.name for each in site.of(name)] for name in site.specialists}
        nemesis = Nemesis(troubles, Random(seed), one_is_spared(groups), longest=3.0 if is_long() else 1.0)
        callers = Callers(router, history, Random(seed + 1), pause=0.05)
        num_callers = 12 if is_long() else 5
        async with auditing(router, history) as audit, callers.calling(num_callers, leave_share=0.1):
            began = time.monotonic()
            await nemesis.rage(seconds)
            lasted = time.monotonic() - began
            await until_serving(router, *site.replicas)
            await callers.answered(20)
            # A busy machine may have spent the time on starting processes.
            await until(lambda: audit.num_compared >= seconds and len(history.accounts) >= 20 + seconds, 120)
        print(*nemesis.log, sep="\n")
        figure(17, "duration of random faults", lasted, "s", f">= {seconds:g} s")
        figure(17, "random faults", sum(nemesis.done.values()), "times", f">= {max(1, seconds // 5):.0f}")
        missing = {trouble.kind for trouble in troubles} - nemesis.done.keys()
        if seconds >= FOR_ALL:
            figure(17, "random faults: kinds that never came", len(missing), "kinds", "== 0")
        figure(17, "requests during random faults", len(history.accounts), "requests", f">= {20 + seconds:.0f}")
        answered = len(history.answered) / len([each for each in history.accounts if not each.left])
        figure(17, "share answered during random faults", answered, "", "> 0.5", short="> 0.1")
        figure(17, "random faults: receipts compared", audit.num_compared, "receipts", f">= {seconds:.0f}")
        print(*audit.found, sep="\n")
        figure(17, "random faults: receipts that say something else", len(audit.found), "receipts", "== 0")
        if kills := sum(each.sudden for each in history.outages):
            cut = len(history.cut) / (kills * num_callers)
            figure(17, "random faults: share cut off with a killed router", cut, "", "<= 1")
        if scene.memory is not None:
            figure(26, "random faults: killed for lack of memory", scene.memory.num_killed, "processes", "== 0")
        await put_verdict(17, router, history, figure)
