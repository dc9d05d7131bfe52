"""config.json is interpreted as transformers interprets it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specialist.models.checkpoint import ModelConfig, Rope
from specialist.models.fields import ModelFields, ModelRefused
from specialist.models.huggingface import read_huggingface_config
from tests.later import Later
from tests.models.tiny import FAMILIES, TINY, classes

if TYPE_CHECKING:
    import transformers
else:
    transformers = Later("transformers")

ROPES: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 5e5},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128},
    {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.5,
        "truncate": False,
    },
]


def written(tmp_path: Path, family: str, **overrides: Any) -> dict[str, Any]:
    """Return the configuration that transformers writes for a model of this family."""
    config_class, _ = classes(family)
    config_class(**{**TINY, **overrides}).save_pretrained(tmp_path)
    content: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    return content


def read(content: dict[str, Any]) -> ModelConfig:
    return read_huggingface_config(ModelFields("config.json", content))


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: str(rope["rope_type"]))
@pytest.mark.parametrize("family", FAMILIES)
def test_positions_are_read_as_transformers_writes_them_now_and_before(
    tmp_path: Path, family: str, rope: dict[str, Any]
) -> None:
    new = written(tmp_path, family, rope_parameters=rope)
    old = {key: value for key, value in new.items() if key != "rope_parameters"}
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "rope_type")}
    old |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": rope["rope_type"], **scaling}}
    read_new, read_old = read(new).rope, read(old).rope
    assert read_new == read_old
    assert (read_new.kind, read_new.theta, read_new.factor) == (
        rope["rope_type"],
        rope["rope_theta"],
        rope.get("factor", 1.0),
    )
    assert read_new.original_context == rope.get("original_max_position_embeddings", 0)
    for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "low_freq_factor"):
        assert getattr(read_new, name) == rope.get(name, getattr(Rope(), name))


LEFT_OUT = ("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters", "tie_word_embeddings")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("missing", [*LEFT_OUT, "max_position_embeddings", "sliding_window"])
def test_missing_settings_have_the_defaults_of_transformers(tmp_path: Path, family: str, missing: str) -> None:
    content = written(tmp_path, family, hidden_size=512, num_attention_heads=32)
    content.pop(missing, None)
    (tmp_path / "config.json").write_text(json.dumps(content))
    theirs, ours = transformers.AutoConfig.from_pretrained(tmp_path), read(content)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.context == theirs.max_position_embeddings
    assert ours.tied_head == theirs.tie_word_embeddings
    window = theirs.sliding_window if family == "mistral" else None
    assert ours.window(0) == (window if window is not None and window < ours.context else None)


def test_biases_and_norms_by_family(tmp_path: Path) -> None:
    def of(family: str, **overrides: Any) -> tuple[bool, bool, bool, bool]:
        config = read(written(tmp_path, family, **overrides))
        return config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm

    assert of("llama") == (False, False, False, False)
    assert of("llama", attention_bias=True, mlp_bias=True) == (True, True, True, False)
    assert of("mistral") == (False, False, False, False)
    assert of("qwen2") == (True, False, False, False)
    assert of("qwen3") == (False, False, False, True)
    assert of("qwen3", attention_bias=True) == (True, True, False, True)


def test_windows_by_family(tmp_path: Path) -> None:
    def of(family: str, **overrides: Any) -> tuple[int | None, ...]:
        return read(written(tmp_path, family, **overrides)).windows

    assert of("llama") == ()
    assert of("mistral", sliding_window=8) == (8, 8, 8)
    assert of("mistral", sliding_window=None) == of("mistral", sliding_window=512) == ()
    assert of("qwen2", sliding_window=8) == ()
    assert of("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1) == (None, 8, 8)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert of("qwen3", use_sliding_window=True, sliding_window=8, layer_types=kinds) == (8, None, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt_neox"}, "gpt_neox"),
        ({"model_type": None}, "model_type is missing"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 10**30}, "hidden_size"),
        ({"num_attention_heads": -4}, "num_attention_heads"),
        ({"hidden_size": 65, "head_dim": None}, "multiple"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"vocab_size": None}, "vocab_size"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": float("inf")}}, "factor"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    content = {**written(tmp_path, "llama"), **changes}
    with pytest.raises(ModelRefused, match=message):
        read(content)
