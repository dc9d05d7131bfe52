"""Row 17 of docs/reliability.md, and all other faults together: random faults for ten minutes, from a seed that is
printed."""

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
from tests.faults.callers import Callers, connected_client, golden_run, until
from tests.faults.cgroups import Cgroup, cgroup, why_no_cgroups
from tests.faults.figures import Figure, is_long, put_seed
from tests.faults.history import History
from tests.faults.nemesis import (
    Nemesis,
    leaves_one_replica,
    of_cpu,
    of_link,
    of_memory,
    of_process,
    of_proxy,
    of_router,
)
from tests.faults.network import VirtualLink, virtual_links, why_no_virtual_links
from tests.faults.proxy import proxying
from tests.faults.site import Host, Plan, Site, site
from tests.faults.verdict import put_verdict, until_serving
from tests.forbidden import note_missing
from tests.ports import free_port

SEED, SECONDS = "OCTET_FAULTS_SEED", "OCTET_FAULTS_SECONDS"
"""Environment variables that repeat a run: its seed and duration."""
FOR_ALL = 300.0
"""Seconds after which every kind of fault must have occurred."""
ROOM = 96 << 20
"""Bytes of memory that the second poet may use in addition to what it uses after its start."""


@dataclass(frozen=True, slots=True)
class FaultSite:
    site: Site
    link: VirtualLink | None
    """The link to the first writer."""
    port: int
    """Port of the proxy to the last writer."""
    cgroups: dict[str, Cgroup]
    memory: Cgroup | None
    """The memory cgroup of the second poet."""


@pytest.fixture
def fault_site() -> Iterator[FaultSite]:
    """Yield a site with three writers (behind a virtual link, local, and behind a proxy) and two poets. Parts that the
    machine forbids are left out and reported."""
    with ExitStack() as stack:
        port = free_port()
        hosts = {"writer-2": Host(seen_as=f"127.0.0.1:{port}")}
        link, memory, cgroups = None, None, {}
        if reason := why_no_virtual_links():
            note_missing(reason)
        else:
            (link,) = stack.enter_context(virtual_links(1))
            hosts["writer-0"] = Host(link.before, f"{link.there}:50151")
        if reason := why_no_cgroups("cpu", "memory"):
            note_missing(reason)
        else:
            cgroups = {name: stack.enter_context(cgroup("cpu")) for name in ("writer-1", "poet-0")}
            memory = stack.enter_context(cgroup("memory"))
            hosts |= {name: Host(cgroups=(each.folder,)) for name, each in (*cgroups.items(), ("poet-1", memory))}
        settings = "dispatch: {max_cool_down: 2s}\n"
        door = ("--port", str(free_port()), "--http-port", str(free_port()))
        plan = Plan({"writer": 3, "poet": 2}, settings, hosts=hosts, router_options=door)
        made = stack.enter_context(site(plan, wait=False))
        yield FaultSite(made, link, port, cgroups, memory)


@pytest.mark.slow
def test_17_no_caller_receives_anything_wrong_under_random_faults(fault_site: FaultSite, figure: Figure) -> None:
    seed = int(os.environ.get(SEED) or secrets.randbits(32))
    seconds = float(os.environ.get(SECONDS) or (600 if is_long() else 10))
    print(f"{SEED}={seed}, {seconds:g} s")
    put_seed(17, seed)
    asyncio.run(_run_with_faults(fault_site, seed, seconds, figure))


async def _run_with_faults(fault_site: FaultSite, seed: int, seconds: float, figure: Figure) -> None:
    site, replicas = fault_site.site, {each.name: each for each in fault_site.site.replicas}
    async with AsyncExitStack() as stack:
        behind = replicas["writer-2"]
        proxy = await stack.enter_async_context(proxying(fault_site.port, behind.socket))
        await asyncio.to_thread(site.ready)
        router = await stack.enter_async_context(connected_client(site.address, patient=True))
        history = History(await golden_run(router, site.specialists))
        faults = [fault for each in site.replicas for fault in of_process(each.name, each.process)]
        faults += of_router(site.router, history.outages)
        faults += of_proxy(behind, proxy)
        faults += [fault for name, each in fault_site.cgroups.items() for fault in of_cpu(replicas[name], each)]
        if fault_site.link is not None:
            faults += of_link(replicas["writer-0"], fault_site.link)
        if fault_site.memory is not None:
            fault_site.memory.allow_memory(fault_site.memory.memory + ROOM)
            faults += of_memory(replicas["poet-1"], fault_site.memory, site.folder)
        groups = {name: [each.name for each in site.of(name)] for name in site.specialists}
        nemesis = Nemesis(faults, Random(seed), leaves_one_replica(groups), longest=3.0 if is_long() else 1.0)
        callers = Callers(router, history, Random(seed + 1), pause=0.05)
        num_callers = 12 if is_long() else 5
        async with auditing(router, history) as audit, callers.calling(num_callers, leave_share=0.1):
            began = time.monotonic()
            await nemesis.inject_faults(seconds)
            lasted = time.monotonic() - began
            await until_serving(router, *site.replicas)
            await callers.answered(20)
            # On a busy machine, starting processes may have taken the time.
            await until(lambda: audit.num_compared >= seconds and len(history.accounts) >= 20 + seconds)
        print(*nemesis.log, sep="\n")
        figure(17, "duration of random faults", lasted, "s", f">= {seconds:g} s")
        figure(17, "random faults", sum(nemesis.done.values()), "times", f">= {max(1, seconds // 5):.0f}")
        missing = {fault.kind for fault in faults} - nemesis.done.keys()
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
        if fault_site.memory is not None:
            figure(26, "random faults: killed for lack of memory", fault_site.memory.num_killed, "processes", "== 0")
        await put_verdict(17, router, history, figure)
