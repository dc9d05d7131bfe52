"""`octet init` writes a configuration from a folder; the file passes `octet check --models` as it is."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.cli import main
from octet.cli.arguments import started_as
from octet.cli.init import _scalar, _unique_name
from octet.config.annotations import NAME
from octet.config.ensemble import Ensemble
from octet.config.loader import parse_ensemble, read_ensemble
from tests.models.gguf_writer import write_gguf
from tests.models.plain import write_adapter, write_model

CARD = """---
base_model: org/base
tags: [sql, lora]
---
# SQL helper

Answers questions about [SQL](https://example.org): queries,
joins and "indexes".

## Training
More.
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with two adapters, of which one has a card, in the working directory."""
    config = write_model(tmp_path / "models" / "Base")
    write_adapter(tmp_path / "loras" / "sql", config, base_model_name_or_path="org/base")
    (tmp_path / "loras" / "sql" / "README.md").write_text(CARD)
    write_adapter(tmp_path / "loras" / "My Shell!", config, seed=1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str) -> int:
    return main(["init", *arguments])


def written(path: Path = Path("octet.yaml")) -> Ensemble:
    return read_ensemble(path, files=True)


def test_adapters_become_specialists_on_their_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init() == 0
    shown = capsys.readouterr().out
    assert "found    sql: adapter loras/sql on model models/Base, llama, 3 layers, context 512\n" in shown
    program = shlex.join(started_as())
    assert shown.endswith(f"run:\n  {program} check --models octet.yaml\n  {program} serve octet.yaml\n")
    assert "(until then, requests go to sql (by model card) or my-shell (`default`)), then run:\n" in shown
    ensemble = written()
    assert ensemble.names == ("my-shell", "sql")
    sql = ensemble.specialist("sql")
    assert (sql.model, sql.adapters, sql.use_adapters) == (
        str(folder / "models" / "Base"),
        {"sql": str(folder / "loras" / "sql")},
        ("sql",),
    )
    assert sql.describe == 'Answers questions about SQL: queries, joins and "indexes".'
    text = Path("octet.yaml").read_text()
    assert str(folder) not in text
    assert "    # its model card: tags sql, lora\n" in text
    assert text.count("# TODO: say in one sentence what it answers.") == 1
    assert main(["check", "--models", "octet.yaml"]) == 0


def test_existing_file_is_kept_without_force(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("octet.yaml").write_text("mine")
    assert init() == 2
    expected = "octet init: octet.yaml exists: give another name with -o, or --force to overwrite it\n"
    assert capsys.readouterr().err == expected
    assert Path("octet.yaml").read_text() == "mine"
    assert init("--force", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["specialists"]] == list(written().names) == ["my-shell", "sql"]
    assert (found["file"], found["skipped"]) == ("octet.yaml", [])


def test_models_without_adapters_and_what_is_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = write_model(folder / "models" / "wide", "qwen2", hidden_size=128, head_dim=32)
    write_adapter(folder / "loras" / "lost", write_model(folder / ".hidden" / "x", hidden_size=32, head_dim=8))
    write_gguf(folder / "broken.gguf", {"general.architecture": "llama"}, {})
    (folder / "pickled").mkdir()
    (folder / "pickled" / "config.json").write_text("{}")
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    (folder / "unrelated").mkdir()
    (folder / "unrelated" / "config.json").write_text("{}")
    assert init() == 0
    skipped = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped")]
    assert [line.split(":")[0] for line in skipped] == [
        "skipped  broken.gguf",
        "skipped  pickled",
        "skipped  loras/lost",
    ]
    assert "it fits none of the models here: adapter_model.safetensors: the shape of layers.0." in skipped[2]
    ensemble = written()
    assert ensemble.names == ("my-shell", "sql", "wide")
    assert wide.hidden_size == 128
    assert {each.model for each in ensemble.specialists} == {str(folder / "models" / name) for name in ("Base", "wide")}


def test_named_model_is_preferred_and_a_guess_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_model(folder / "models" / "Apart", seed=5)  # sorted before Base
    write_adapter(folder / "loras" / "other", config, base_model_name_or_path="org/elsewhere")
    assert init() == 0
    shown = capsys.readouterr().out
    assert written().specialist("sql").model.endswith("/Base")
    assert "found    other: adapter loras/other on model models/Apart, " in shown
    assert "(its base model is org/elsewhere; Apart has the same shapes)" in shown
    assert "(it also fits Base)" in shown
    assert "# its base model is org/elsewhere; Apart has the same shapes: check that this is its model" in (
        Path("octet.yaml").read_text()
    )


def test_file_elsewhere_has_absolute_paths_and_an_adapter_root(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("elsewhere") / "shop.yaml"
    assert init(str(folder), "-o", str(file)) == 0
    ensemble = written(file)
    assert ensemble.adapter_root == str(folder)
    assert ensemble.specialists[0].model == str(folder / "models" / "Base")


def test_folder_without_models_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(str(tmp_path), "-o", str(tmp_path / "x.yaml")) == 2
    assert capsys.readouterr().err.startswith(f"octet init: {tmp_path} has nothing to serve: ")
    assert not (tmp_path / "x.yaml").exists()
    assert init(str(tmp_path / "gone"), "-o", str(tmp_path / "x.yaml")) == 2
    assert "gone: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["demo", "~root", "~nosuchuser", "~", "hf:org", "hf:org/tiny", "null", "1.5", "a: b #c"]
)
def test_names_with_another_meaning_are_written_as_paths(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_model(tmp_path / name / "m")
    assert init(name) == 0
    assert written().specialists[0].model == str(tmp_path / name / "m")
    (tmp_path / name / "m").rename(tmp_path / "moved")
    (tmp_path / name).rmdir()
    (tmp_path / "moved").rename(tmp_path / name)
    write_adapter(tmp_path / "~lora", config)
    assert init("--force") == 0
    (only,) = written().specialists
    assert (only.model, list(only.adapters.values())) == (str(tmp_path / name), [str(tmp_path / "~lora")])
    assert "with 1 specialist\ndescribe it there, then run:\n" in capsys.readouterr().out


def test_path_that_would_be_read_as_another_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("octet.cli.init._path_scalar", lambda _path, _home: "demo")
    assert init() == 2
    expected = f"octet init: '{folder}/models/Base' would be read as 'demo' in a configuration: rename it\n"
    assert capsys.readouterr().err == expected
    assert not Path("octet.yaml").exists()


def test_odd_entries_are_skipped_with_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "loop").symlink_to("loop")
    write_model(folder / "models" / "red\x1b[31m")
    (folder / "two\nlines.gguf").write_bytes(b"")
    (folder / os.fsdecode(b"not-\xff-utf8")).mkdir()
    (folder / "notes\x1b.txt").write_text("unrelated")
    (folder / "locked").mkdir()
    scan = os.scandir

    def scan_unless_locked(path: Path) -> "os._ScandirIterator[str]":
        if Path(path).name == "locked":  # permissions do not stop root
            raise PermissionError(13, "Permission denied", str(path))
        return scan(str(path))

    monkeypatch.setattr(os, "scandir", scan_unless_locked)
    assert init() == 0
    unnamed = "its name has characters that cannot be printed: rename it"
    skipped = [line for line in capsys.readouterr().out.splitlines() if line.startswith("skipped")]
    assert sorted(skipped) == [
        "skipped  locked: cannot be read: Permission denied",
        "skipped  loop: cannot be read: Too many levels of symbolic links",
        f"skipped  models/red [31m: {unnamed}",
        f"skipped  not- -utf8: {unnamed}",
        f"skipped  two lines.gguf: {unnamed}",
    ]
    assert written().names == ("my-shell", "sql")
    assert init("--json", "--force") == 0
    paths = {each["path"] for each in json.loads(capsys.readouterr().out)["skipped"]}
    assert str(folder / os.fsdecode(b"not-\xff-utf8")) in paths


def test_printed_commands_work_in_a_shell(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    file = "-it's; my file.yaml"
    call = [sys.executable, "-m", "octet.cli", "init", f"-o{file}"]
    shown = subprocess.run(call, env=environment, capture_output=True, text=True, check=True).stdout
    check = shown.splitlines()[-2].strip()
    assert shlex.split(check)[-3:] == ["check", "--models", f"./{file}"]
    subprocess.run(["/bin/sh", "-c", check], env=environment, capture_output=True, check=True)
    assert Path(file).read_text().startswith("# Written by octet init. Next: octet check --models './-it'")


def test_file_with_an_unprintable_name_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("-o", "x\ndefault: y.yaml") == 2
    assert capsys.readouterr().err.startswith("octet init: -o must be a name of printable characters, got 'x\\ndefault")


def test_card_with_windows_line_ends_is_read(folder: Path) -> None:
    (folder / "loras" / "sql" / "README.md").write_bytes(CARD.replace("\n", "\r\n").encode())
    assert init() == 0
    assert written().specialist("sql").describe == 'Answers questions about SQL: queries, joins and "indexes".'
    assert "    # its model card: tags sql, lora\n" in Path("octet.yaml").read_text()


def test_undescribed_specialists_leave_every_request_to_the_default(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "loras" / "sql" / "README.md").unlink()
    assert init() == 0
    expected = "describe them there (until then, every request goes to my-shell (`default`)), then run:\n"
    assert expected in capsys.readouterr().out


@given(st.text(max_size=80))
def test_every_text_is_read_as_it_was_written(text: str) -> None:
    clean = "".join(one for one in text if one.isprintable())
    if clean:
        ensemble = parse_ensemble(f"specialists:\n  a: {{describe: {_scalar(clean)}}}\n", None)
        assert ensemble.specialists[0].describe == clean


@given(st.lists(st.text(max_size=90), max_size=5))
def test_names_are_valid_and_differ(texts: list[str]) -> None:
    taken = {"reject"}
    names = [_unique_name(text, taken) for text in texts]
    assert len({*names, "reject"}) == len(names) + 1
    assert all(NAME.pattern is not None and NAME.pattern.fullmatch(name) for name in names)
