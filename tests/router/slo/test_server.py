"""A whole router: shadows do not count, a restart keeps the figures, and an unavailable store delays no request."""

from dataclasses import replace
from pathlib import Path

from octet.config.ensemble import REJECT, Ensemble, ShadowConfig, SloTargets, SpecialistConfig, StoreConfig
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2
from router.receipt_log import receipt_labels
from router.routing.classifier.base import Distribution
from specialist.engines.sim.engine import CostModel
from tests.router.serving.harness import RouterHarness, ensemble_of, infer_request, running_router
from tests.specialist.server.harness import running_replica, sim
from tests.system.harness import ask, operate, router, running_replicas
from tests.system.test_wiring import settings

SLOW = CostModel(0.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0)
"""Costs with which a replica generates twenty tokens a second."""
CHANGE = operator_pb2.Change(who="alice", why="a test")
NOWHERE = "postgresql://nobody:nothing@127.0.0.1:1/absent"


class UnsureClassifier:
    digest = "0" * 64

    def cached(self, text: str, tenant: str = "") -> Distribution:
        return Distribution((("writer", 0.4), ("critic", 0.35), (REJECT, 0.25)))

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        return self.cached(text)


def samples(routed: RouterHarness) -> list[int]:
    return [each.ttft.samples for each in routed.server.slos.all()]


def kept_in(url: str) -> Ensemble:
    return replace(ensemble_of("writer", "critic"), store=StoreConfig(url=url))


async def test_a_first_token_is_counted_once_and_immediately() -> None:
    async with (
        running_replica(sim(SLOW)) as one,
        running_replica(sim()) as other,
        running_router({"writer": [one.address], "critic": [other.address]}) as routed,
    ):
        slos = routed.server.slos
        call = routed.generate(infer_request(max_tokens=200, ignore_eos=True))
        await routed.until(lambda: samples(routed) == [1, 0])
        published = slos.of("writer")
        assert (published.admission_to_first_token.samples, published.answered) == (1, 0), (
            "the answer takes ten seconds more"
        )
        assert published.ttft.p50 >= published.admission_to_first_token.p50
        call.cancel()
        await routed.idle()
        await routed.ask(infer_request(specialist="critic", max_tokens=4))
        await routed.until(lambda: samples(routed)[1] == 1)
        assert samples(routed) == [1, 1]


async def test_a_demotion_burns_nothing_and_an_unavailable_fallback_burns_its_own() -> None:
    promised = SloTargets(ttft_p95=5.0)
    specialists = (
        SpecialistConfig("writer", fallback="editor", slo=promised),
        SpecialistConfig("editor", slo=promised),
    )
    async with (
        running_replicas("writer", "editor") as people,
        router(people, settings(specialists=specialists, default="writer")) as routed,
    ):
        slos = routed.server.slos
        await operate(routed, "HoldBreaker", held("writer"), operator_pb2.BreakerInfo)
        (editor,) = [each.name for each in routed.server.fleet.replicas if each.specialist == "editor"]
        drain = operator_pb2.DrainReplicaRequest(replica=editor, change=CHANGE)
        await operate(routed, "DrainReplica", drain, operator_pb2.ReplicaInfo)
        response = await ask(routed)
        assert response.reason == wire.ERROR_REASON_NO_REPLICA and response.receipt is not None
        assert (response.receipt.decision.primary, response.receipt.between.lead) == ("writer", "editor")
        assert receipt_labels(response.receipt).specialist == "editor"
        await routed.until(lambda: slos.counts("editor")["ttft_p95"] == (1, 1))
        await operate(routed, "HoldBreaker", held("editor"), operator_pb2.BreakerInfo)
        response = await ask(routed)
        assert response.reason == wire.ERROR_REASON_DEMOTED and response.receipt is not None
        assert receipt_labels(response.receipt).specialist == "writer"
        await routed.idle()
        assert slos.counts("writer")["ttft_p95"] == (0, 0) and slos.counts("editor")["ttft_p95"] == (1, 1)


def held(specialist: str) -> operator_pb2.HoldBreakerRequest:
    return operator_pb2.HoldBreakerRequest(specialist=specialist, hold="open", change=CHANGE)


async def test_a_shadow_counts_for_no_specialist() -> None:
    ensemble = replace(ensemble_of("writer", "critic"), shadow=ShadowConfig(budget=1.0))
    async with (
        running_replica(sim()) as one,
        running_replica(sim()) as other,
        running_router(
            {"writer": [one.address], "critic": [other.address]}, ensemble=ensemble, opinions=UnsureClassifier()
        ) as routed,
    ):
        control = routed.server.services.control
        await routed.until(
            lambda: all(control.fleet_status.specialists[each].lane.lane_id for each in ("writer", "critic"))
        )
        for _ in range(6):
            response = await routed.ask(wire.InferRequest(prompt="hello", max_tokens=4))
            assert response.receipt is not None and response.receipt.specialist == "writer"
        await routed.until(lambda: routed.server.services.shadows.counters.answered > 0)
        await routed.until(lambda: samples(routed)[0] == 6)
        assert samples(routed) == [6, 0], "the shadow was computed but must not count"


async def test_a_restart_keeps_the_window(tmp_path: Path) -> None:
    ensemble = kept_in(f"sqlite:{tmp_path / 'state.db'}")
    async with running_replica(sim()) as one, running_replica(sim()) as other:
        places = {"writer": [one.address], "critic": [other.address]}
        async with running_router(places, ensemble=ensemble) as routed:
            for _ in range(4):
                await routed.ask(infer_request(max_tokens=4))
            await routed.idle()
        async with running_router(places, ensemble=ensemble) as routed:
            await routed.until(lambda: samples(routed) == [4, 0])
            await routed.ask(infer_request(max_tokens=4))
            await routed.until(lambda: samples(routed) == [5, 0])
            assert routed.server.slos.of("writer").routers == 2
            counts = routed.server.slos.counts("writer")
            assert counts.keys() <= {"correctness"}, "without objectives, only verdicts are counted"


async def test_an_unavailable_store_delays_no_request() -> None:
    async with running_replica(sim()) as one, running_replica(sim()) as other:
        places = {"writer": [one.address], "critic": [other.address]}
        async with running_router(places, ensemble=kept_in(NOWHERE)) as routed:
            assert routed.server.services.store.trouble
            for _ in range(3):
                response = await routed.ask(infer_request(max_tokens=4))
                assert response.error is None
            await routed.until(lambda: samples(routed) == [3, 0])
            assert routed.server.slos.of("writer").routers == 1
