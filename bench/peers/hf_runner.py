"""Hugging Face transformers: one batch without padding, `generate` with its KV cache."""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from bench.peers.serve import Loaded, Prompts, Stopwatch, serve

torch = import_module("torch")
transformers = import_module("transformers")


class _Streamer:
    """Receives the prompts from `generate` first, then the newest token of every sequence."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._prompts_seen = False

    def put(self, tokens: Any) -> None:
        if self._prompts_seen:
            for i, token in enumerate(tokens.tolist()):
                self._stopwatch.arrived(i, (token,))
        self._prompts_seen = True

    def end(self) -> None:
        pass


class Transformers:
    def __init__(self, model: str) -> None:
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def generate(self, prompts: Prompts, new_tokens: int) -> dict[str, Any]:
        input_ids = torch.tensor(prompts)
        stopwatch = Stopwatch(len(prompts))
        with torch.inference_mode():
            self._model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                use_cache=True,
                streamer=_Streamer(stopwatch),
            )
        return stopwatch.result()


def load(arguments: Sequence[str]) -> Loaded:
    (model,) = arguments
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    runner = Transformers(model)
    settings = f"transformers {transformers.__version__}, torch {torch.__version__}, float32, {threads} threads"
    return Loaded(settings, {"generate": runner.generate})


if __name__ == "__main__":
    serve(load)
