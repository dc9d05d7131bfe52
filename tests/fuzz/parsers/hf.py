"""Hugging Face directories: one file is mutated while the others are valid."""

import json
from pathlib import Path

import torch
from safetensors.torch import save

from specialist.models.fields import ModelRefused
from specialist.models.open import open_checkpoint
from tests.fuzz.files import scratch
from tests.fuzz.parser import Parser, Shape
from tests.models.tiny import CHAT_TEMPLATE, tiny_tokenizer

_HIDDEN, _INNER, _ROWS = 8, 12, 272
_CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": _ROWS,
    "hidden_size": _HIDDEN,
    "intermediate_size": _INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_SHAPES = {
    "model.embed_tokens": (_ROWS, _HIDDEN),
    "model.norm": (_HIDDEN,),
    "model.layers.0.input_layernorm": (_HIDDEN,),
    "model.layers.0.post_attention_layernorm": (_HIDDEN,),
    "model.layers.0.self_attn.q_proj": (_HIDDEN, _HIDDEN),
    "model.layers.0.self_attn.k_proj": (_HIDDEN // 2, _HIDDEN),
    "model.layers.0.self_attn.v_proj": (_HIDDEN // 2, _HIDDEN),
    "model.layers.0.self_attn.o_proj": (_HIDDEN, _HIDDEN),
    "model.layers.0.mlp.gate_proj": (_INNER, _HIDDEN),
    "model.layers.0.mlp.up_proj": (_INNER, _HIDDEN),
    "model.layers.0.mlp.down_proj": (_HIDDEN, _INNER),
}
_WEIGHTS = save({f"{name}.weight": torch.ones(shape) for name, shape in _SHAPES.items()})
_FILES = {
    "config.json": json.dumps(_CONFIG).encode(),
    "tokenizer.json": tiny_tokenizer().to_str().encode(),
    "tokenizer_config.json": json.dumps(
        {"eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>"}, "chat_template": CHAT_TEMPLATE}
    ).encode(),
    "generation_config.json": json.dumps({"eos_token_id": [2, 0]}).encode(),
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {f"{name}.weight": "part.safetensors" for name in _SHAPES}}
    ).encode(),
    "part.safetensors": _WEIGHTS,
}


def _directory() -> Path:
    folder = scratch() / "hf"
    folder.mkdir(exist_ok=True)
    return folder


def _with(name: str, raw: bytes) -> object:
    folder = _directory()
    for other, content in _FILES.items():
        (folder / other).write_bytes(raw if other == name else content)
    return open_checkpoint(folder)


def _of(name: str, shape: Shape, share: float) -> Parser:
    return Parser(
        f"hf.{name}",
        lambda raw: _with(name, raw),
        (ModelRefused,),
        (_FILES[name],),
        shape,
        words=(b'"dtype":"F64"', b'"data_offsets":[0,0]', b'"../x"') if shape == "bytes" else (),
        share=share,
    )


PARSERS = [
    _of("config.json", "json", 0.5),
    _of("tokenizer.json", "json", 0.3),
    _of("tokenizer_config.json", "json", 0.3),
    _of("generation_config.json", "json", 0.3),
    _of("model.safetensors.index.json", "json", 0.3),
    _of("part.safetensors", "bytes", 0.5),
]
