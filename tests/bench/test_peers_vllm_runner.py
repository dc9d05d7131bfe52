"""The vLLM runner with timed arrivals and with adapters, on a fake engine."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.peers.model_files import write_adapter
from bench.peers.vllm_runner import Vllm


class FakeEngine:
    """An engine that generates one token per request in each step."""

    def __init__(self) -> None:
        self.wanted: dict[str, int] = {}
        self.most = 0
        self.loaded: dict[str, dict[str, Any]] = {}
        """Matrices by adapter. They are kept here because the files are deleted after loading."""
        self.asked: list[str | None] = []

    def add_lora(self, adapter: SimpleNamespace) -> None:
        self.loaded[adapter.name] = load_file(Path(adapter.path) / "adapter_model.safetensors")

    def add_request(
        self, name: str, prompt: object, sampling: SimpleNamespace, lora_request: SimpleNamespace | None
    ) -> None:
        self.asked.append(None if lora_request is None else lora_request.name)
        self.wanted[name] = sampling.max_tokens

    def has_unfinished_requests(self) -> bool:
        return bool(self.wanted)

    def step(self) -> list[SimpleNamespace]:
        self.most = max(self.most, len(self.wanted))
        outputs = [SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[7])]) for name in self.wanted]
        self.wanted = {name: left - 1 for name, left in self.wanted.items() if left > 1}
        return outputs


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    made, kinds = FakeEngine(), SimpleNamespace(DELTA="delta")
    module = SimpleNamespace(LLM=lambda **_: SimpleNamespace(llm_engine=made), SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", SimpleNamespace(RequestOutputKind=kinds))
    request = SimpleNamespace(LoRARequest=lambda name, number, path: SimpleNamespace(name=name, path=path))
    monkeypatch.setitem(sys.modules, "vllm.lora.request", request)
    return made


def test_each_prompt_arrives_at_its_time(engine: FakeEngine) -> None:
    mixed = Vllm("model", "float32", 0).arrive([[1], [2], [3]], [2, 3, 1], [0.0, 0.0, 1.0])
    assert [len(mine) for mine in mixed["times"]] == [len(mine) for mine in mixed["tokens"]] == [2, 3, 1]
    assert all(mine[0] >= due for mine, due in zip(mixed["times"], [0.0, 0.0, 1.0], strict=True))
    assert engine.most == 2, "the last prompt must arrive after the others have ended"
    assert engine.asked == [None] * 3


def test_prompts_use_the_same_adapters_as_ours_in_turn(engine: FakeEngine, tmp_path: Path) -> None:
    stem = "model.layers.{}.self_attn.{}_proj.weight"
    shapes = {"q": (12, 8), "k": (4, 8), "v": (4, 8)}
    tensors = {stem.format(layer, kind): torch.zeros(shape) for layer in (0, 1) for kind, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    runner = Vllm(str(tmp_path), "float32", 16)
    mixed = runner.mix([[1], [2], [3]], 2, 2, None)
    assert [len(mine) for mine in mixed["tokens"]] == [2, 2, 2] and engine.most == 3, "the prompts must share steps"
    runner.mix([[1]], 1, 1, None)
    assert engine.asked == ["bench-0", "bench-1", "bench-0", "bench-0"]
    ours = {f"layers.{layer}.{kind}": shapes[kind] for layer in (1, 0) for kind in ("v", "q")}
    for seed, matrices in enumerate(engine.loaded.values()):
        mine = load_file(write_adapter(tmp_path / f"ours-{seed}", ours, seed) / "adapter_model.safetensors")
        assert mine.keys() == matrices.keys() and all(torch.equal(mine[name], matrices[name]) for name in mine)
    assert len(engine.loaded) == 2
