"""The engine bench beside a peer from a folder, with a stand-in for vLLM; random models; the costs of GPU steps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import random_models
from bench.engine import EngineOptions, measure_engine
from bench.engine_calibration import calibrate
from bench.engine_decode import open_model
from bench.peers import octet_runner
from bench.peers.octet_runner import Octet, Opened, open_native
from bench.random_models import SHAPES, random_model
from bench.timing import Findings
from kvpool import BlockPool
from octet.clock import ManualClock
from specialist.engines.native.gpu_engine import DecodeRows, GpuEngine
from specialist.engines.sim.engine import cost_model_from_json
from specialist.scheduling.scheduler import Scheduler, SchedulerConfig
from specialist.scheduling.step import FixedBudget
from tests.native.greedy_replica import BARE
from tests.native.test_gpu_engine import Memory

FAKE_VLLM = {
    "vllm/__init__.py": '''\
import os, sys
from pathlib import Path
from types import SimpleNamespace

__version__ = "fake"
SamplingParams = SimpleNamespace


class Engine:
    """Its core hands over a token of each request in each step; its own answers come at the end, as one piece."""

    def __init__(self, blocks):
        self.wanted, self.num_made = {}, 0
        self.engine_core = SimpleNamespace(get_output=self._get)
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=16),
            scheduler_config=SimpleNamespace(async_scheduling=True),
            attention_config=SimpleNamespace(backend="FLASH_ATTN", flash_attn_version=3),
            compilation_config=SimpleNamespace(cudagraph_mode="FULL"),
        )

    def add_request(self, name, prompt, sampling, lora_request):
        assert sampling.output_kind == "final", sampling
        own = f"{name}-{self.num_made}"
        self.num_made += 1
        self.wanted[own] = sampling.max_tokens
        return own

    def add_lora(self, adapter):
        assert (Path(adapter.path) / "adapter_model.safetensors").is_file()

    def has_unfinished_requests(self):
        return bool(self.wanted)

    def _get(self):
        made = [SimpleNamespace(request_id=name, new_token_ids=[7]) for name in self.wanted]
        self.wanted = {name: left - 1 for name, left in self.wanted.items() if left > 1}
        return SimpleNamespace(outputs=made)

    def step(self):
        self.engine_core.get_output()
        return []


def LLM(**settings):
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0" and "octet" not in sys.modules
    assert settings["gpu_memory_utilization"] == 0.35 and settings["max_num_seqs"] == 128, settings
    assert settings["dtype"] == "bfloat16" and settings["max_model_len"] == 256, settings
    assert settings.get("max_loras") in (None, 16)
    return SimpleNamespace(llm_engine=Engine(BLOCKS))
''',
    "vllm/sampling_params.py": "class RequestOutputKind:\n    DELTA, FINAL_ONLY = 'delta', 'final'\n",
    "vllm/platforms/__init__.py": "class current_platform:\n    is_cuda = staticmethod(lambda: False)\n",
    "vllm/platforms/cuda.py": "class CudaPlatform:\n    pass\n",
    "vllm/lora/request.py": "from types import SimpleNamespace\n\n\n"
    "def LoRARequest(name, number, path):\n    return SimpleNamespace(path=path)\n",
}
TINY: dict[str, Any] = {
    **SHAPES["0.6b"],
    **{"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 256},
}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return random_model("tiny", tmp_path / "models", {"tiny": TINY})


def fake_vllm(folder: Path, blocks: int) -> Path:
    for name, text in FAKE_VLLM.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("BLOCKS", str(blocks)))
    return folder


def measure(tmp_path: Path, model: Path, folder: Path, *peers: str, **changes: Any) -> Findings:
    options = EngineOptions(
        peers or ("vllm",), runs=1, cache=tmp_path, timeout=120.0, quick=True, octet=("--engine", "sim"),
        on_gpu=True, dtype="bfloat16", peer_path=folder, **changes,
    )  # fmt: skip
    return measure_engine(open_model(model, tmp_path), options, lambda line: None)


@pytest.mark.slow
def test_a_peer_from_a_folder_is_measured_in_the_same_rounds(tmp_path: Path, tiny: Path) -> None:
    outcome = measure(tmp_path, tiny, fake_vllm(tmp_path / "site", 4096))
    assert outcome.failures == []
    found = {(record.case, record.system, record.metric): record.value for record in outcome.records}
    for metric in ("decode", "throughput"):
        ours, theirs = found["4 sequences", "octet", metric], found["4 sequences", "vllm", metric]
        assert found["4 sequences vs vllm", "octet", metric] == pytest.approx(ours / theirs)
    assert ("prompt of 64 tokens vs vllm", "octet", "prefill") in found
    [settings] = [note for note in outcome.notes if note.startswith("vllm: ")]
    assert all(word in settings for word in ("vLLM fake", "bfloat16", "FLASH_ATTN 3", "asynchronous", "65,536 tokens"))


@pytest.mark.slow
def test_a_peer_from_a_folder_mixes_adapters(tmp_path: Path, tiny: Path) -> None:
    outcome = measure(tmp_path, tiny, fake_vllm(tmp_path / "site", 4096), parts=("adapters",))
    assert outcome.failures == []
    cases = {record.case for record in outcome.records if record.system == "vllm"}
    assert cases == {f"16 sequences, {number}" for number in ("no adapter", "1 adapter", "4 adapters", "16 adapters")}


@pytest.mark.slow
def test_a_peer_that_cannot_start_is_left_out(tmp_path: Path, tiny: Path) -> None:
    outcome = measure(tmp_path, tiny, fake_vllm(tmp_path / "site", 4095), "vllm", "hf")
    small, cpu_only = outcome.failures
    assert "vllm: failed while loading: MemoryError: vLLM has a KV cache of 65,520 tokens" in small
    assert cpu_only == "hf: runs on the CPU only"
    assert {record.system for record in outcome.records} == {"octet", "limit"}
    outcome = measure(tmp_path, tiny, tmp_path / "nothing")
    assert outcome.failures == [f"vllm: {tmp_path / 'nothing'} has no package vllm: unpack it there"]


def test_a_random_model_opens_and_is_written_once(tmp_path: Path, tiny: Path) -> None:
    before = [(file, file.stat().st_mtime_ns) for file in sorted(tiny.iterdir())]
    assert sum(file.suffix == ".safetensors" for file, _ in before) > 1
    assert random_model("tiny", tmp_path / "models", {"tiny": TINY}) == tiny
    assert [(file, file.stat().st_mtime_ns) for file in sorted(tiny.iterdir())] == before
    opened = open_native(tiny, "cpu", "float32")
    answer = Octet(opened).generate([[5, 6, 7], [8]], 4)
    assert [len(mine) for mine in answer["tokens"]] == [4, 4]
    assert opened.matrix_elements == 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 64 * 32)


def test_writing_a_random_model_leaves_nothing_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(random_models, "_write_shard", fails)
    with pytest.raises(OSError, match="no space"):
        random_model("tiny", tmp_path, {"tiny": TINY})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_the_known_shapes_have_the_expected_number_of_weights(shape: str) -> None:
    from specialist.models.checkpoint import expected_shapes
    from specialist.models.fields import ModelFields
    from specialist.models.huggingface import read_huggingface_config
    from specialist.models.huggingface_files import NAMES

    config = read_huggingface_config(ModelFields(shape, dict(SHAPES[shape])))
    written = {NAMES.rename(name, shape): size for name, size in random_models.tensors(SHAPES[shape]).items()}
    assert written == dict(expected_shapes(config))


STEP, HOST = 1e-3, 3e-4


class TimedMemory(Memory):
    """A decoder on a device that works on its own: each step takes STEP there, and HOST to be launched."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(num_blocks=400, block_size=4)
        self.clock, self.busy_until = clock, 0.0

    def launch(self, rows: DecodeRows) -> Any:
        found = super().launch(rows)
        self.clock.sleep(HOST)
        self.busy_until = end = max(self.busy_until, self.clock.now()) + STEP

        def wait() -> tuple[list[int], list[float]]:
            self.wait_until(end)
            return found.wait()

        return SimpleNamespace(wait=wait)

    def launch_batch(self, batch: Any, *others: Any) -> Any:
        found = super().launch_batch(batch, *others)
        self.busy_until = max(self.busy_until, self.clock.now()) + 1e-5 * len(batch.tokens)
        return found

    def wait_until(self, time: float) -> None:
        self.clock.sleep(max(0.0, time - self.clock.now()))


def test_a_calibration_sees_decode_steps_that_overlap_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    memory = TimedMemory(clock)
    monkeypatch.setattr(octet_runner, "perf_counter", clock.now)
    monkeypatch.setattr(octet_runner, "settle", lambda device: memory.wait_until(memory.busy_until))
    nothing: Any = SimpleNamespace()
    config = SchedulerConfig(BARE, max_running=8, max_step_tokens=64, mixes_adapters=True)
    scheduler = Scheduler(BlockPool(400, 4, prefix_cache=False), config, clock, budget=FixedBudget(64))
    replica: Any = SimpleNamespace(scheduler=scheduler, engine=GpuEngine(memory, nothing, nothing))
    octet = Octet(Opened(replica, "", 0, {}, device="cuda"))

    class Here:
        settings = "a test"

        def call(self, name: str, **arguments: Any) -> Any:
            return octet.calls[name](**arguments)

    peer: Any = Here()
    content, _ = calibrate(peer, vocab_size=150, revision="0" * 64, shapes=((1, 8), (2, 40), (4, 64), (6, 16)))
    cost = cost_model_from_json(content)
    assert cost.decode_step + cost.decode_token == pytest.approx(STEP, rel=0.05), "a step hides the host's work"
    assert cost.prefill_token == pytest.approx(1e-5, rel=0.2)
