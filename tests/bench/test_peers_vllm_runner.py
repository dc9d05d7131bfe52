"""vLLM's engine under arrivals: an engine of a few lines in its place."""

import sys
from types import SimpleNamespace

import pytest

from bench.peers.vllm_runner import Vllm


class FakeEngine:
    """A token for everybody a step."""

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.most = 0

    def add_request(self, name: str, prompt: object, sampling: SimpleNamespace) -> None:
        self.wanted[name] = sampling.max_tokens

    def has_unfinished_requests(self) -> bool:
        return bool(self.wanted)

    def step(self) -> list[SimpleNamespace]:
        self.most = max(self.most, len(self.wanted))
        outputs = [SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[7])]) for name in self.wanted]
        self.wanted = {name: left - 1 for name, left in self.wanted.items() if left > 1}
        return outputs


def test_each_prompt_comes_at_its_time_whoever_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, kinds = FakeEngine(), SimpleNamespace(DELTA="delta")
    module = SimpleNamespace(LLM=lambda **_: SimpleNamespace(llm_engine=engine), SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", SimpleNamespace(RequestOutputKind=kinds))
    told = Vllm("model", "float32").arrive([[1], [2], [3]], [2, 3, 1], [0.0, 0.0, 0.05])
    assert [len(mine) for mine in told["times"]] == [len(mine) for mine in told["tokens"]] == [2, 3, 1]
    assert all(mine[0] >= due for mine, due in zip(told["times"], [0.0, 0.0, 0.05], strict=True))
    assert engine.most == 2, "the last one comes when the others have gone"
