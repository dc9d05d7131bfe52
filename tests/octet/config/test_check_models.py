"""`octet check` sees what is wrong with a model's files, and `octet check --models` opens them as a replica does."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specialist.models.checkpoint import ModelConfig
from tests.models.gguf_writer import write_gguf
from tests.models.plain import write_adapter, write_model
from tests.octet.config.test_check_command import check


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    config = write_model(tmp_path / "tiny")
    write_adapter(tmp_path / "sql", config)
    return config


def config_file(folder: Path, text: str) -> Path:
    path = folder / "shop.yaml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Return what `octet check` prints, one line for each problem, without the name of the file."""
    path = config_file(folder, text)
    assert check(str(path), *options) == 2
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{path}:") for line in lines)
    return [line.removeprefix(f"{path}:").replace(str(folder), "DIR") for line in lines]


def test_cheap_problems_are_seen_without_opening(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("empty", "bare", "adapter"):
        (tmp_path / name).mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    (tmp_path / "fake.gguf").write_text("not a model")
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    text = """specialists:
  a: {model: gone}
  b: {model: empty}
  c: {model: bare}
  d: {model: fake.gguf, adapters: {x: empty, y: adapter}}
  e: {model: /dev/null}
"""
    assert problems(tmp_path, text, capsys) == [
        "2: specialists.a.model does not exist: DIR/gone",
        "3: specialists.b.model has no config.json, so it is not a Hugging Face directory: DIR/empty",
        "4: specialists.c.model has no *.safetensors with the model's weights: DIR/bare",
        "5: specialists.d.model is not a GGUF file: DIR/fake.gguf",
        "5: specialists.d.adapters.x has no adapter_config.json, so it is not a PEFT adapter: DIR/empty",
        "5: specialists.d.adapters.y has no adapter_model.safetensors, so it is not a PEFT adapter: DIR/adapter",
        "6: specialists.e.model must be a Hugging Face directory or a GGUF file: /dev/null",
    ]


def test_good_models_pass(tmp_path: Path, model: ModelConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, "model: tiny\ndefault: a\nspecialists: {a: {adapters: {sql: sql}}, b: {}}\n")
    assert check(str(path), "--models") == 0
    assert capsys.readouterr().out.endswith("\nopened      1 model, 1 adapter\n")


def test_one_run_reports_every_problem(tmp_path: Path, model: ModelConfig, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_model(tmp_path / "wide", hidden_size=128, head_dim=32)
    write_adapter(tmp_path / "for-wide", other)
    write_gguf(tmp_path / "no-model.gguf", {"general.architecture": "llama"}, {})
    (tmp_path / "empty").mkdir()
    text = f"""model: gone
specialists:
  inherits: {{}}
  inherits-too: {{}}
  empty: {{model: empty}}
  gguf: {{model: no-model.gguf}}
  long: {{model: tiny, context: 9999, max_tokens: 9}}
  mixed:
    model: tiny
    adapters: {{sql: sql, wide: for-wide, none: nothing}}
    adapter_digests: {{sql: {"0" * 64}}}
"""
    found = problems(tmp_path, text, capsys, "--models")
    assert [line.partition(" cannot be served: ")[0] for line in found] == [
        "1: model",
        "5: specialists.empty.model",
        "5: specialists.empty.model",
        "6: specialists.gguf.model",
        "7: specialists.long.context",
        "10: specialists.mixed.adapters.sql",
        "10: specialists.mixed.adapters.wide",
        "10: specialists.mixed.adapters.none",
    ]
    said = [line.partition(" cannot be served: ")[2] for line in found]
    assert said[0].endswith("give a Hugging Face directory or a GGUF file (for inherits, inherits-too)")
    assert said[1] == "empty: config.json is missing: fetch the whole directory again"
    assert said[2] == "empty: no *.safetensors file: give a directory with the model's weights"
    assert "no-model.gguf: tokenizer.ggml.tokens is missing" in said[3]
    assert said[4] == "the configured context of 9,999 tokens exceeds the model's 512: lower it"
    assert said[5].startswith(f"DIR/sql: digest: sql must have the digest {'0' * 64}, got ")
    assert said[6].startswith("DIR/for-wide: adapter_model.safetensors: the shape of layers.0.")
    assert said[7].startswith("DIR/nothing: adapter_config.json: cannot be read")


def break_config(folder: Path) -> None:
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "model_type": "gpt2"}))


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")


def break_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for message in %}")


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (break_config, "tiny/config.json: model_type 'gpt2' is not supported: use a model of the type llama"),
    (break_tokenizer, "tiny/tokenizer.json: model must be an object"),
    (drop_tensor, "tiny: norm is missing: the download or conversion is incomplete; repeat it"),
    (break_template, "tiny: chat template: "),
]


@pytest.mark.parametrize(("damage", "said"), BROKEN)
def test_each_part_of_a_model_is_opened(
    tmp_path: Path, model: ModelConfig, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None], said: str
) -> None:
    damage(tmp_path / "tiny")
    (line,) = problems(tmp_path, "specialists: {a: {model: tiny}}\n", capsys, "--models")
    assert line.startswith(f"1: specialists.a.model cannot be served: {said}")


def test_all_parts_of_one_model_are_reported(
    tmp_path: Path, model: ModelConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    break_tokenizer(tmp_path / "tiny")
    drop_tensor(tmp_path / "tiny")
    found = problems(tmp_path, "specialists: {a: {model: tiny}}\n", capsys, "--models")
    assert len(found) == 2
    assert check(str(tmp_path / "shop.yaml"), "--models", "--json") == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2


def test_files_that_are_not_opened_must_still_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "specialists:\n  a: {engine: sim, adapters: {x: gone}}\n  b: {model: none, adapters: {x: gone}}\n"
    found = problems(tmp_path, text, capsys, "--models")
    nowhere = "DIR/none: no such file or directory: give a Hugging Face directory or a GGUF file"
    assert [line.replace(" cannot be served", "").partition(":")[::2] for line in found] == [
        ("2", " specialists.a.adapters.x does not exist: DIR/gone"),
        ("3", f" specialists.b.model: {nowhere}"),
        ("3", " specialists.b.adapters.x does not exist: DIR/gone"),
    ]


def test_replicas_elsewhere_and_simulated_ones_are_not_opened(tmp_path: Path) -> None:
    path = config_file(
        tmp_path, "default: a\nspecialists:\n  a: {addresses: ['x:1'], model: gone}\n  b: {engine: sim}\n"
    )
    assert check(str(path), "--models") == 0


def test_weights_must_fit_into_their_share_of_the_card(
    tmp_path: Path, model: ModelConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "device: cuda\nmodel: tiny\ndefault: a\nspecialists:\n  a: {memory_fraction: 0.25}\n  b: {}\n"
    sizes = {"cuda:0": 4 << 30}
    monkeypatch.setattr("specialist.server.model_check.card_bytes", sizes.get)
    (line,) = problems(tmp_path, text, capsys, "--models")
    assert line == (
        "5: specialists.a.memory_fraction cannot be served: "
        "0.0 GiB of weights and a margin of 1.0 GiB exceed 1.0 GiB of the card"
    )
    sizes.clear()  # a machine without this card cannot tell
    assert check(str(config_file(tmp_path, text)), "--models") == 0


def test_a_draft_model_must_exist_and_have_the_same_vocabulary(
    tmp_path: Path, model: ModelConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "small", num_hidden_layers=1)
    write_model(tmp_path / "other", vocab_size=model.vocab_size + 64)
    good = config_file(tmp_path, "model: tiny\nspecialists: {a: {draft_window: 4, draft_model: small}}\n")
    assert check(str(good), "--models") == 0
    capsys.readouterr()
    text = (
        "model: tiny\ndefault: a\ndraft_window: 4\nspecialists:\n  a: {draft_model: gone}\n  b: {draft_model: other}\n"
    )
    missing, differs = problems(tmp_path, text, capsys, "--models")
    assert missing.startswith("5: specialists.a.draft_model cannot be served: DIR/gone: no such file or directory")
    assert differs == (
        "6: specialists.b.draft_model cannot be served: other: as a draft model it must have the vocabulary of the "
        f"model, but it has {model.vocab_size + 64:,} tokens and the model {model.vocab_size:,}: choose a smaller "
        "model of the same family"
    )
