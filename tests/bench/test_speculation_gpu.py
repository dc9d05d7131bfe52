"""The models that agree by construction, and the speed-up that acceptance and step costs let expect. Here, on a CPU."""

from itertools import pairwise

import pytest

from bench.agreeing_models import AgreeingModels, agreeing_models
from bench.speculation_gpu import SHARES, Case, FixedWindow, RoundCost, SpeculationBench, expected_speed_up
from octet.clock import SystemClock
from specialist.scheduling.sequence import Sampling
from specialist.server.settings import ReplicaSettings

SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 6000, "hidden_size": 128,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 1024, "hidden_act": "silu", "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "attention_bias": False, "mlp_bias": False, "eos_token_id": 0, "bos_token_id": None,
}  # fmt: skip
LARGE = {**SMALL, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def models() -> AgreeingModels:
    return agreeing_models(LARGE, SMALL, SHARES, "cpu")


@pytest.fixture(scope="module")
def bench(models: AgreeingModels) -> SpeculationBench:
    settings = ReplicaSettings(draft_window=16, kernel="float32", kv_bytes=16 << 20, threads=1, max_running=16)
    return SpeculationBench(models, settings, SystemClock(), answer=48)


def test_the_next_token_follows_whatever_came_before(bench: SpeculationBench) -> None:
    decoded = bench.decode(Case(0.8, 3), 0, seed=1)
    for answer in decoded.answers:
        assert len(answer) == 48 and all(b == a + 1 for a, b in pairwise(answer))
    counts = decoded.counts
    assert counts.guesses == 0 and 2 * counts.steps < counts.tokens <= 3 * counts.steps


@pytest.mark.parametrize("share", SHARES)
def test_the_small_model_is_right_as_often_as_it_was_built_to_be(share: float, bench: SpeculationBench) -> None:
    replica = bench._replica
    assert replica.proposer is not None and replica.proposer.model is not None
    checked = right = 0
    for seed in range(4):
        drafts = FixedWindow(replica.proposer.model.model, 4)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replica.scheduler.rows, "_proposer", drafts)
            counts = bench.decode(Case(share, 8), 16, seed).counts
        checked, right = checked + counts.checked, right + counts.right
    assert checked > 500
    assert right / checked == pytest.approx(share, abs=0.06)


def test_every_window_is_measured(bench: SpeculationBench) -> None:
    costs = bench.costs(2)
    assert set(costs) == {1, 2, 3, 4, 5, 6, 8, 10, 12, 16}
    assert all(cost.guessing > 0 and cost.checking > 0 for cost in costs.values())


def test_drafts_change_no_drawn_answer(bench: SpeculationBench) -> None:
    case = Case(0.95, 4, Sampling(temperature=1.0))
    assert bench.decode(case, 16, 3).answers == bench.decode(case, 0, 3).answers


def test_the_best_window_follows_from_acceptance_and_costs() -> None:
    costs = {window: RoundCost(0.1 * window, 1.0) for window in (1, 2, 4)}
    assert expected_speed_up(0.0, 1.0, costs) == (1.0, 0)
    assert expected_speed_up(1.0, 1.0, costs) == pytest.approx((5 / 1.4, 4))
    assert expected_speed_up(0.5, 1.0, costs) == pytest.approx((1.75 / 1.2, 2))
