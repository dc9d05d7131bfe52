"""A caller sees how many drafts its answer had, and may have fewer than the replica allows; operators see the sums."""

import re
from typing import Any

import pytest

from octet.clock import ManualClock
from octet.limits import MAX_DRAFT_WINDOW
from octet.v1 import specialist_pb2 as wire
from specialist.engines.sim.engine import CostModel, SimModel
from specialist.server.replica import AssembledReplica, create_sim_replica
from specialist.server.settings import ReplicaSettings
from tests.laws.oracle import EagerProposer
from tests.specialist.server.harness import ask, running_replica, sim

ASKED: dict[str, Any] = {"tokens": wire.TokenIds(ids=[0] * 8), "max_tokens": 40, "ignore_eos": True}

ENDLESS: dict[str, Any] = {"tokens": wire.TokenIds(ids=[1, 2, 3, 4, 5]), "max_tokens": 60, "ignore_eos": True}


def repetitive(**settings: Any) -> AssembledReplica:
    """Return a replica whose model always says the same, and that drafts as much as it may."""
    replica: Any = sim(**settings)()
    replica.engine.model = SimModel(vocab_size=1)
    replica.scheduler.rows._proposer = EagerProposer()
    return replica  # type: ignore[no-any-return]


async def test_usage_load_and_metrics_count_drafts() -> None:
    async with running_replica(lambda: repetitive(draft_window=8)) as served:
        found = []
        for window in (None, 0, 3, MAX_DRAFT_WINDOW):
            received = await ask(served.client, wire.GenerateRequest(**ASKED, draft_window=window))
            assert received.usage is not None and received.tokens == (0,) * 40
            found.append((received.usage.drafted_tokens, received.usage.accepted_tokens))
        usual, none, few, most = found
        assert none == (0, 0) and usual == most, "no request gets more than the replica allows"
        assert 20 < few[1] < usual[1] <= usual[0]
        report = served.server.publisher.report()
        assert report.drafted_tokens == sum(drafted for drafted, _ in found)
        assert report.accepted_tokens == sum(accepted for _, accepted in found)
        text = (await served.server.exposition.write("")).body.decode()
        labels = r'result="(\w+)",source="(\w+)"'
        counted = {
            (source, result): int(num)
            for result, source, num in re.findall(rf"octet_replica_draft_tokens_total\{{.*?{labels}.*?\}} (\d+)", text)
        }
        rejected = report.drafted_tokens - report.accepted_tokens
        assert counted["own_text", "accepted"] == report.accepted_tokens
        assert counted["own_text", "rejected"] == rejected
        assert counted["lane", "accepted"] == counted["lane", "rejected"] == 0
        for window in (-1, MAX_DRAFT_WINDOW + 1):
            refused = await ask(served.client, wire.GenerateRequest(**ASKED, draft_window=window))
            assert str(refused.error) == f"draft_window must be in [0, {MAX_DRAFT_WINDOW}], got {window}"


def test_a_replica_without_drafts_has_no_proposer() -> None:
    for window in (0, 8):
        replica = create_sim_replica(ReplicaSettings(engine="sim", draft_window=window), ManualClock(), CostModel())
        assert (replica.scheduler.rows._proposer is not None) == (window > 0)


async def test_drafts_from_other_answers_are_counted_apart_from_others() -> None:
    made: Any = sim(draft_window=16, draft_lane=True)()
    lane = made.proposer.lane
    made.scheduler.rows._proposer = EagerProposer(lane)
    async with running_replica(lambda: made) as served:
        first, second = [await ask(served.client, wire.GenerateRequest(**ENDLESS)) for _ in "ab"]
        assert first.tokens == second.tokens and second.usage is not None and second.usage.accepted_tokens > 20
        text = (await served.server.exposition.write("")).body.decode()
        assert re.search(r'draft_tokens_total\{.*?result="accepted",source="lane".*?\} [1-9]', text)
        assert lane.num_bytes > 0
        assert re.search(rf"octet_replica_lane_text_bytes\{{.*?\}} {lane.num_bytes}", text)


@pytest.mark.parametrize("window", [-1, MAX_DRAFT_WINDOW + 1])
def test_a_window_out_of_range_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match="draft_window must be in"):
        ReplicaSettings(draft_window=window)
