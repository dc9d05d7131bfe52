"""vLLM's CPU build: its offline engine, driven step by step."""

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.peers.model_files import RANK, TARGETS, write_adapter
from bench.peers.serve import Call, Loaded, Prompts, SteppedEngine, serve

_CONTEXT = 2048
_MOST_SEQUENCES = 32
_KV_SPACE_GIB = "3"


class Vllm(SteppedEngine):
    def __init__(self, model: str, dtype: str, most_adapters: int) -> None:
        self.vllm = import_module("vllm")
        adapters = {"enable_lora": True, "max_loras": most_adapters, "max_lora_rank": RANK} if most_adapters else {}
        self._engine = self.vllm.LLM(
            model=model,
            dtype=dtype,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=_CONTEXT,
            max_num_seqs=_MOST_SEQUENCES,
            **adapters,
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
                self._engine.add_lora(self._adapters[-1])
        return self.generate(prompts, new_tokens, self._adapters[:num_adapters])

    def submit(self, prompt: Sequence[int], new_tokens: int, adapter: Any = None) -> str:
        sampling = self.vllm.SamplingParams(
            temperature=0.0,
            max_tokens=new_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=import_module("vllm.sampling_params").RequestOutputKind.DELTA,
        )
        name = f"r{next(self._names)}"
        self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, sampling, lora_request=adapter)
        return name

    def step(self) -> list[tuple[str, list[int]]] | None:
        if not self._engine.has_unfinished_requests():
            return None
        return [(output.request_id, list(output.outputs[0].token_ids)) for output in self._engine.step()]


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
    options = parser.parse_args(arguments)
    threads = len(os.sched_getaffinity(0))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = _KV_SPACE_GIB
    os.environ["OMP_NUM_THREADS"] = str(threads)  # left unset, vLLM computes with one thread
    runner = Vllm(options.model, options.dtype, options.adapters)
    settings = f"vLLM {runner.vllm.__version__} for CPU, {options.dtype}, {threads} threads, prefix caching off"
    calls: dict[str, Call] = {"generate": runner.generate, "arrive": runner.arrive}
    if options.adapters:
        settings += f", made for {options.adapters} adapters"
        calls["mix"] = runner.mix
    return Loaded(settings, calls)


if __name__ == "__main__":
    serve(load)
