"""Models with the shape of well-known ones and random weights, for machines without network."""

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from math import prod
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHAPE = "shape:"
_COMMON: Mapping[str, Any] = {
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "eos_token_id": 0,
    "bos_token_id": None,
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "0.6b": {
        **_COMMON,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
    },
    "8b": {
        **_COMMON,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "mlp_bias": False,
    },
}
"""Of Qwen3-0.6B and of Llama 3.1 8B."""
_SPREAD = 0.02
_SHARDS = 8


def random_model(shape: str, cache: Path, shapes: Mapping[str, Mapping[str, Any]] = SHAPES) -> Path:
    """Return the directory of the model, in bfloat16. It is written once, and appears as a whole. Raises KeyError for
    an unknown shape."""
    config = shapes[shape]
    directory = cache / f"{config['model_type']}-{shape}-shape"
    if directory.exists():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(dir=cache, prefix=".draft-"))
    try:
        (draft / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        letters_tokenizer(config["vocab_size"]).save(str(draft / "tokenizer.json"))
        _write_weights(draft, tensors(config))
        draft.replace(directory)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors by name."""
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    table = config["vocab_size"], hidden
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table, "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = table
    of_layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    if config["model_type"] == "qwen3":
        of_layer |= {"self_attn.q_norm": (size,), "self_attn.k_norm": (size,)}
    for layer in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found


def _write_weights(directory: Path, sizes: Mapping[str, tuple[int, ...]]) -> None:
    """Write the tensors as shards of about the same size, several at a time: a model of 16 GB takes seconds."""
    import torch

    on_gpu = torch.cuda.is_available()
    ends = accumulate(map(_num_bytes, sizes.values()))
    share = sum(map(_num_bytes, sizes.values())) / _SHARDS
    shards: dict[int, dict[str, tuple[int, ...]]] = {}
    for (name, size), end in zip(sizes.items(), ends, strict=True):
        shards.setdefault(int((end - _num_bytes(size)) // share), {})[name] = size
    with ThreadPoolExecutor(min(len(shards), len(os.sched_getaffinity(0)))) as threads:
        write = partial(_write_shard, directory, "cuda" if on_gpu else "cpu")
        list(threads.map(write, shards.items()))
    if on_gpu:
        torch.cuda.empty_cache()  # the engines need the memory


def _num_bytes(shape: tuple[int, ...]) -> int:
    return 2 * prod(shape)


def _write_shard(directory: Path, device: str, shard: tuple[int, Mapping[str, tuple[int, ...]]]) -> None:
    """Write a safetensors file: the length of its header, the header, and the tensors one after the other."""
    import torch

    number, tensors = shard
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        start, end = end, end + _num_bytes(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator(device=device).manual_seed(number)
    with (directory / f"model-{number:02}.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensors.values():
            if len(shape) == 1:
                values = torch.ones(shape, dtype=torch.bfloat16)
            else:
                values = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=generator) * _SPREAD
            file.write(values.cpu().view(torch.uint8).numpy().data)


def letters_tokenizer(vocab_size: int) -> "Tokenizer":
    """Return a tokenizer without merges: a token for each byte, and as many others as the vocabulary needs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = ["<e>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocab = {letter: number for number, letter in enumerate(letters)}
    vocab |= {f"<t{number}>": number for number in range(len(letters), vocab_size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
