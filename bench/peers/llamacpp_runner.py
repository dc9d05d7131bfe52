"""llama.cpp through llama-cpp-python's low-level interface: all sequences in one batch, one decode call per step."""

import argparse
import os
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from bench.peers.serve import Loaded, Prompts, Stopwatch, serve

llama = import_module("llama_cpp")
numpy = import_module("numpy")

_CONTEXT = 1024
_MOST_SEQUENCES = 32
_BATCH = 2048


class _Entry(NamedTuple):
    token: int
    position: int
    sequence: int
    sampled: bool


class LlamaCpp:
    def __init__(self, model: str, *, flash_attention: bool, mmap: bool, threads: int) -> None:
        llama.llama_backend_init()
        model_params = llama.llama_model_default_params()
        model_params.use_mmap = mmap
        params = llama.llama_context_default_params()
        params.n_ctx = _MOST_SEQUENCES * _CONTEXT
        params.n_seq_max = _MOST_SEQUENCES
        params.n_batch = _BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = (
            llama.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attention else llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self._model = llama.llama_model_load_from_file(model.encode(), model_params)
        if not self._model:
            raise ValueError(f"llama.cpp cannot load {model}")
        self._context = llama.llama_init_from_model(self._model, params)
        self._memory = llama.llama_get_memory(self._context)
        self._num_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))

    def generate(self, prompts: Prompts, new_tokens: int) -> dict[str, Any]:
        llama.llama_memory_clear(self._memory, True)
        stopwatch = Stopwatch(len(prompts))
        newest = self._prefill(prompts, stopwatch)
        for step in range(1, new_tokens):
            entries = [
                _Entry(token, len(prompt) + step - 1, i, True)
                for i, (token, prompt) in enumerate(zip(newest, prompts, strict=True))
            ]
            newest = self._decode(entries)
            _note(stopwatch, range(len(prompts)), newest)
        return stopwatch.result()

    def _prefill(self, prompts: Prompts, stopwatch: Stopwatch) -> list[int]:
        entries = [
            _Entry(token, position, i, position == len(prompt) - 1)
            for i, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        firsts: list[int] = []
        for start in range(0, len(entries), _BATCH):
            arrived = self._decode(entries[start : start + _BATCH])
            _note(stopwatch, range(len(firsts), len(firsts) + len(arrived)), arrived)
            firsts += arrived
        return firsts

    def _decode(self, entries: Sequence[_Entry]) -> list[int]:
        """Run one forward pass. Return the most likely token after each sampled entry."""
        batch = llama.llama_batch_init(len(entries), 0, 1)
        try:
            batch.n_tokens = len(entries)
            for i, (token, position, sequence, sampled) in enumerate(entries):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, sampled
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            status = llama.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode returned {status}")
            return [self._argmax(i) for i, entry in enumerate(entries) if entry.sampled]
        finally:
            llama.llama_batch_free(batch)

    def _argmax(self, index: int) -> int:
        logits = llama.llama_get_logits_ith(self._context, index)
        return int(numpy.ctypeslib.as_array(logits, shape=(self._num_vocab,)).argmax())


def _note(stopwatch: Stopwatch, prompts: Iterable[int], tokens: Sequence[int]) -> None:
    for prompt, token in zip(prompts, tokens, strict=True):
        stopwatch.arrived(prompt, (token,))


def load(arguments: Sequence[str]) -> Loaded:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--flash-attention", action="store_true")
    parser.add_argument("--no-mmap", action="store_true")
    options = parser.parse_args(arguments)
    threads = len(os.sched_getaffinity(0))
    runner = LlamaCpp(options.model, flash_attention=options.flash_attention, mmap=not options.no_mmap, threads=threads)
    settings = (
        f"llama-cpp-python {llama.__version__}, the GGUF file as it is, {threads} threads, "
        f"flash attention {'on' if options.flash_attention else 'off'}, mmap {'off' if options.no_mmap else 'on'}"
    )
    return Loaded(settings, {"generate": runner.generate})


if __name__ == "__main__":
    serve(load)
