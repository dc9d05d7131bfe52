"""The pages /metrics and /metrics/replicas over real sockets: their content, and who may read them. Values from callers
must not create series."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

from octet.v1 import slo_pb2
from router.observe.metrics.quality import slo_source
from specialist.scheduling.step import Step
from tests.monitoring.exported import families
from tests.patience import PATIENCE
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.keys.keyed import issue_key, running_keyed_router
from tests.router.serving.spy import answer, running_spy
from tests.specialist.server.harness import adapter_directory, ask, generate_request, running_replica, sim

Series = tuple[str, tuple[tuple[str, str], ...]]
NUM_SAID = 12
"""The number of hostile values of each kind. A label with these values would create as many series."""
SAID = re.compile(r"\d-\d")
"""A pattern that matches a part of every hostile value."""


def series(page: str) -> set[Series]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))) for family in families(page) for sample in family.samples
    }


async def page_of(fronted: HttpHarness, path: str = "/metrics") -> str:
    response = await fronted.get(path)
    assert response.status == 200, response.body
    return response.body.decode()


async def _flood(fronted: HttpHarness, run_number: int) -> None:
    """Send requests with a new value in every field."""
    for number in range(NUM_SAID):
        odd = f'x{run_number}-{number}"\n{{}}'
        options = {"intent": odd, "session_id": f"s{run_number}-{number}", "priority": number % 10}
        await fronted.ask(octet=options, user=odd)
        await fronted.ask(model=f"octet/absent{run_number}-{number}")
        await fronted.ask(model=f"unknown{run_number}-{number}")
        await fronted.ask(octet={"adapters": [f"a{run_number}-{number}"]})
        await fronted.ask(octet={"timeout_ms": 1})
        await fronted.get(f"/v1/nothing{run_number}-{number}")
        await fronted.get(f"/v1/receipts/r{run_number}-{number}")
        await fronted.get(f"/metrics?x={run_number}-{number}")
        await fronted.send(
            "GET", "/metrics", b"", {"accept": f"text/{run_number}-{number};version=x.y", "user_agent": "z"}
        )
        await fronted.post(b"{", **{"x-request-id": f"h{run_number}-{number}"})


async def test_a_flood_of_hostile_values_makes_no_series() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        seen = list[set[Series]]()
        for number in range(3):
            await _flood(fronted, number)
            await served.idle()
            pages = [await page_of(fronted), await page_of(fronted, "/metrics/replicas")]
            seen.append(set[Series]().union(*map(series, pages)))
            assert "x0-1" not in "".join(pages) and "absent" not in "".join(pages)
        _, before, after = ({label for _, labels in each for label in labels} for each in seen)
        assert not [label for label in after if SAID.search(label[1])]
        gained = Counter(name for name, _ in after - before)  # Some metrics get their first samples here.
        assert all(number < NUM_SAID for number in gained.values()), gained
        assert len(seen[2]) < 1200


async def test_replicas_have_labels_and_silent_ones_are_counted(tmp_path: Path) -> None:
    adapter_directory(tmp_path, "my-lora")
    async with (
        running_replica(sim(), adapter_root=tmp_path) as one,
        running_replica(sim()) as two,
        running_spy(answer) as silent,
        running_http_router({"writer": [one.address, two.address, silent.address]}) as fronted,
    ):
        await ask(one.client, generate_request())
        one.replica.adapters.load("my-lora", tmp_path / "my-lora")
        found = {family.name: family for family in families(await page_of(fronted, "/metrics/replicas"))}
        up = {sample.labels["replica"]: sample.value for sample in found["octet_replica_up"].samples}
        assert up == {"writer-0": 1, "writer-1": 1, "writer-2": 0}
        finished = found["octet_replica_finished_requests"].samples
        assert {(each.labels["replica"], each.labels["specialist"]) for each in finished if each.value == 1} >= {
            ("writer-0", "writer")
        }
        loaded = [sample.labels for sample in found["octet_replica_adapter_info"].samples]
        assert [(each["replica"], each["adapter"]) for each in loaded] == [("writer-0", "my-lora")]
        own = await page_of(fronted)
        assert 'octet_replica_scrape_failures_total{reason="silent",specialist="writer"} 1.0' in own


def test_an_objective_without_samples_is_neither_met_nor_missed() -> None:
    class FakeSlos:
        def all(self) -> list[slo_pb2.Slo]:
            seen = slo_pb2.Objective(name="ttft_p95", target=0.2, current=0.3)
            unseen = slo_pb2.Objective(name="itl_p95", target=0.1, met=True)
            return [slo_pb2.Slo(specialist="writer", objectives=[seen, unseen])]

        def counts(self, specialist: str) -> dict[str, tuple[int, int]]:
            return {}

    slos: Any = FakeSlos()
    found = {family.name: family.samples for family in filter(None, slo_source(slos))}
    met = [(sample.labels["objective"], sample.value) for sample in found["octet_slo_objective_met"]]
    assert met == [("ttft_p95", 0)] and len(found["octet_slo_objective_target"]) == 2


async def test_only_operators_see_the_metrics() -> None:
    caller, operator = issue_key("ann"), issue_key("ops", "operate")
    async with running_keyed_router([caller, operator]) as fronted:
        for path in ("/metrics", "/metrics/replicas"):
            assert (await fronted.get(path)).status == 401
            assert (await fronted.send("GET", path, b"", caller.headers)).status == 403
            response = await fronted.send("GET", path, b"", operator.headers)
            assert response.status == 200
        assert (
            'octet_gate_refusals_total{reason="unauthenticated"} 2.0'
            in (await fronted.send("GET", "/metrics", b"", operator.headers)).body.decode()
        )
        asked = json.dumps({"model": "octet/writer", "messages": [{"role": "user", "content": "secret-words"}]})
        await fronted.post(asked.encode(), **operator.headers)
        page = (await fronted.send("GET", "/metrics", b"", operator.headers)).body.decode()
        assert "secret-words" not in page and "ann" not in page and operator.token not in page


async def test_a_scrape_does_not_wait_for_generation() -> None:
    """A replica whose engine is stuck in a step still reports its metrics."""
    stuck, goes_on = Event(), Event()

    def fault(_: Step) -> None:
        if stuck.is_set():
            goes_on.wait(PATIENCE)

    async with (
        running_replica(sim(faults=fault)) as served,
        running_http_router({"writer": [served.address]}) as fronted,
    ):
        stuck.set()
        asking_for_long = asyncio.create_task(fronted.ask())
        try:
            under_way = 0.0
            async with asyncio.timeout(PATIENCE):
                while under_way == 0.0:
                    found = families(await page_of(fronted, "/metrics/replicas"))
                    (family,) = [each for each in found if each.name == "octet_replica_step_under_way_seconds"]
                    under_way = family.samples[0].value
            assert not asking_for_long.done()
        finally:
            goes_on.set()
        assert (await asking_for_long).status == 200
