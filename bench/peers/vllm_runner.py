"""vLLM's offline engine, driven step by step: its CPU build, or on a GPU."""

import argparse
import json
import os
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.peers.model_files import RANK, TARGETS, write_adapter
from bench.peers.serve import Call, Loaded, Prompts, SteppedEngine, serve

_CPU: Mapping[str, Any] = {"max_model_len": 2048, "max_num_seqs": 32}
_KV_SPACE_GIB = "3"
_GPU: Mapping[str, Any] = {"max_num_seqs": 128, "generation_config": "vllm", "seed": 0}
_GPU_CONTEXT = 4096
_LEAST_KV = 128 * 512  # tokens: all sequences of the bench at once, with room
_FAST = {"attention_config": {"backend": "FLASH_ATTN", "flash_attn_version": 3}}  # on Hopper
_VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


class Vllm(SteppedEngine):
    output_kind = "DELTA"

    def __init__(self, model: str, dtype: str, most_adapters: int, settings: Mapping[str, Any] = _CPU) -> None:
        self.vllm = import_module("vllm")
        adapters = {"enable_lora": True, "max_loras": most_adapters, "max_lora_rank": RANK} if most_adapters else {}
        self.engine = self.vllm.LLM(
            model=model, dtype=dtype, skip_tokenizer_init=True, enable_prefix_caching=False, **settings, **adapters
        ).llm_engine
        self._model = Path(model)
        self._adapters: list[Any] = []
        self._names = count()

    def mix(self, prompts: Prompts, new_tokens: int, num_adapters: int, age_bound: None) -> dict[str, Any]:
        adapter = import_module("vllm.lora.request").LoRARequest
        with TemporaryDirectory(prefix="octet-bench-") as folder:
            for index in range(len(self._adapters), num_adapters):
                directory = write_adapter(Path(folder) / str(index), _shapes(self._model), index)
                self._adapters.append(adapter(f"bench-{index}", index + 1, str(directory)))
                self.engine.add_lora(self._adapters[-1])
        return self.generate(prompts, new_tokens, self._adapters[:num_adapters] or (None,))

    def submit(self, prompt: Sequence[int], new_tokens: int, adapter: Any = None) -> str:
        sampling = self.vllm.SamplingParams(
            temperature=0.0,
            max_tokens=new_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=getattr(import_module("vllm.sampling_params").RequestOutputKind, self.output_kind),
        )
        name = f"r{next(self._names)}"
        own = self.engine.add_request(name, {"prompt_token_ids": list(prompt)}, sampling, lora_request=adapter)
        return self.name_of(name, own)

    def name_of(self, name: str, own: str | None) -> str:
        """Return the name of a request in steps, of the bench's name and the engine's own."""
        return name

    def step(self) -> list[tuple[str, Sequence[int]]] | None:
        if not self.engine.has_unfinished_requests():
            return None
        return [(output.request_id, list(output.outputs[0].token_ids)) for output in self.engine.step()]


class VllmOnGpu(Vllm):
    """Makes an answer only at the end, as vLLM's `generate` does, which is faster than one for each token. The tokens
    of a step are seen where the engine's core hands them over."""

    output_kind = "FINAL_ONLY"

    def __init__(self, model: str, dtype: str, most_adapters: int, settings: Mapping[str, Any]) -> None:
        super().__init__(model, dtype, most_adapters, settings)
        self._latest: list[Any] = []
        core = self.engine.engine_core
        get_output = core.get_output

        def seen() -> Any:
            found = get_output()
            self._latest = found.outputs
            return found

        core.get_output = seen

    def name_of(self, name: str, own: str | None) -> str:
        return own or name

    def step(self) -> list[tuple[str, Sequence[int]]] | None:
        if not self.engine.has_unfinished_requests():
            return None
        self._latest = []
        self.engine.step()
        return [(output.request_id, output.new_token_ids) for output in self._latest]


def _shapes(model: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is no mapping
                for kind, target in TARGETS.items():
                    if name.endswith(f"{target}.weight"):
                        layer = name.split(".")[2]
                        shapes[f"layers.{layer}.{kind}"] = tuple(tensors.get_slice(name).get_shape())
    return shapes


def load(arguments: Sequence[str]) -> Loaded:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--adapters", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--memory-fraction", type=float, default=0.35)
    options = parser.parse_args(arguments)
    runner, about = (_load_on_gpu if options.device == "cuda" else _load_on_cpu)(options)
    settings = f"vLLM {runner.vllm.__version__} {about}, prefix caching off"
    calls: dict[str, Call] = {"generate": runner.generate, "arrive": runner.arrive}
    if options.adapters:
        settings += f", made for {options.adapters} adapters"
        calls["mix"] = runner.mix
    return Loaded(settings, calls)


def _load_on_cpu(options: argparse.Namespace) -> tuple[Vllm, str]:
    threads = len(os.sched_getaffinity(0))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = _KV_SPACE_GIB
    os.environ["OMP_NUM_THREADS"] = str(threads)  # left unset, vLLM computes with one thread
    runner = Vllm(options.model, options.dtype, options.adapters)
    return runner, f"for CPU, {options.dtype}, {threads} threads"


def _load_on_gpu(options: argparse.Namespace) -> tuple[Vllm, str]:
    os.environ.update(_VARIABLES)
    _find_headers()
    platforms = import_module("vllm.platforms")
    if not platforms.current_platform.is_cuda():  # it asks a library that some machines lack
        setattr(platforms, "_current_platform", import_module("vllm.platforms.cuda").CudaPlatform())  # noqa: B010
    limit = json.loads((Path(options.model) / "config.json").read_text()).get("max_position_embeddings", _GPU_CONTEXT)
    settings = {**_GPU, "max_model_len": min(limit, _GPU_CONTEXT), "gpu_memory_utilization": options.memory_fraction}
    has_gpu = torch.cuda.is_available()
    if has_gpu and torch.cuda.get_device_capability()[0] == 9:
        settings |= _FAST
    runner = VllmOnGpu(options.model, options.dtype, options.adapters, settings)
    config = runner.engine.vllm_config
    kv = config.cache_config.num_gpu_blocks * config.cache_config.block_size
    if kv < _LEAST_KV:
        raise MemoryError(f"vLLM has a KV cache of {kv:,} tokens, and the bench needs {_LEAST_KV:,}")
    scheduling = "asynchronous" if config.scheduler_config.async_scheduling else "synchronous"
    attention = config.attention_config
    about = [
        f"on {torch.cuda.get_device_name() if has_gpu else 'no GPU'}, {options.dtype}, torch {torch.__version__}",
        f"attention {attention.backend} {attention.flash_attn_version}",
        f"graphs {config.compilation_config.cudagraph_mode}, {scheduling} scheduling, KV of {kv:,} tokens",
    ]
    return runner, ", ".join(about)


def _find_headers() -> None:
    """Let Triton find Python.h beside vLLM where Python's own headers are not installed."""
    if (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return
    spec = find_spec("vllm")
    if spec is not None and spec.origin is not None:
        headers = Path(spec.origin).parents[1] / "_pyinclude" / "python3.12"
        if headers.is_dir():
            os.environ["CPATH"] = os.pathsep.join(filter(None, (str(headers), os.environ.get("CPATH"))))


if __name__ == "__main__":
    serve(load)
