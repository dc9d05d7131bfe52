"""The trained 260K-parameter model of llama2.c as a Hugging Face directory."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from torch import Tensor

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
CONTROL = ("<unk>", "<s>", "</s>")
BOS, EOS = 1, 2
FIRST_PIECE = 259
"""Id of the first ordinary token, after three control tokens and 256 bytes."""
EPS = 1e-5


@pytest.fixture(scope="session")
def stories_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trained model as a Hugging Face directory. Skip the test if its data is missing."""
    source = Path(__file__).resolve().parents[3] / "shared" / "data" / "stories260K"
    if not (source / "stories260K.bin").is_file():
        pytest.skip(f"no stories260K model at {source}; docs/performance.md says where it comes from")
    directory = tmp_path_factory.mktemp("stories260K")
    convert(source, directory)
    return directory


def convert(source: Path, directory: Path) -> None:
    raw = (source / "stories260K.bin").read_bytes()
    dim, inner, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", raw)
    floats = torch.frombuffer(bytearray(raw[28:]), dtype=torch.float32)
    save_file(_tensors(floats, dim, inner, layers, heads, kv_heads, vocab), directory / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": dim,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        "rms_norm_eps": EPS,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "bos_token_id": BOS,
        "eos_token_id": [BOS, EOS],
    }
    (directory / "config.json").write_text(json.dumps(config))
    _tokenizer((source / "tok512.bin").read_bytes(), vocab).save(str(directory / "tokenizer.json"))


def _tensors(
    floats: Tensor, dim: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int
) -> dict[str, Tensor]:
    kv_dim = dim // heads * kv_heads
    at = 0

    def take(*shape: int) -> Tensor:
        nonlocal at
        size = torch.Size(shape).numel()
        at += size
        return floats[at - size : at].view(shape)

    embed, attn_norm = take(vocab, dim), take(layers, dim)
    q, k, v, o = take(layers, dim, dim), take(layers, kv_dim, dim), take(layers, kv_dim, dim), take(layers, dim, dim)
    mlp_norm, gate = take(layers, dim), take(layers, inner, dim)
    down, up, norm = take(layers, dim, inner), take(layers, inner, dim), take(dim)
    tensors = {"model.embed_tokens.weight": embed, "model.norm.weight": norm}
    for i in range(layers):
        tensors |= {
            f"model.layers.{i}.{name}.weight": tensor.contiguous()
            for name, tensor in {
                "input_layernorm": attn_norm[i],
                "post_attention_layernorm": mlp_norm[i],
                "self_attn.q_proj": halves_apart(q[i], heads),
                "self_attn.k_proj": halves_apart(k[i], kv_heads),
                "self_attn.v_proj": v[i],
                "self_attn.o_proj": o[i],
                "mlp.gate_proj": gate[i],
                "mlp.down_proj": down[i],
                "mlp.up_proj": up[i],
            }.items()
        }
    return {name: tensor.clone() for name, tensor in tensors.items()}


def halves_apart(weight: Tensor, heads: int) -> Tensor:
    """Return the rows of each head in Hugging Face's order. llama2.c rotates neighbouring rows as a pair; Hugging Face
    pairs each row of the first half with one of the second."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _tokenizer(raw: bytes, vocab_size: int) -> Tokenizer:
    at, scored = 4, []
    for _ in range(vocab_size):
        score, length = struct.unpack_from("<fi", raw, at)
        scored.append((score, raw[at + 8 : at + 8 + length].decode().replace(" ", SPACE)))
        at += 8 + length
    pieces = [*CONTROL, *(text for _, text in scored[len(CONTROL) :])]
    known = set(pieces[FIRST_PIECE:])
    ranked = sorted(
        (-score, piece[:cut], piece[cut:])
        for score, piece in scored[FIRST_PIECE:]
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    )
    merges = [(left, right) for _, left, right in ranked]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocab, merges, unk_token=CONTROL[0], fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer
