"""The short forms of a configuration file, and what they mean."""

import subprocess
import sys
from pathlib import Path

import pytest

from octet.config.ensemble import DEFAULT_TASKS, Ensemble, IntentConfig, SpecialistConfig, TaskConfig
from octet.config.loader import parse_ensemble, read_ensemble
from octet.config.values import format_size, parse_duration, parse_size
from tests.octet.config.ensembles import named

SOURCE = Path("/etc/octet/shop.yaml")


def test_name_alone_is_a_complete_ensemble() -> None:
    expected = Ensemble(specialists=(SpecialistConfig("sql"),), tasks=DEFAULT_TASKS, source=SOURCE)
    assert parse_ensemble("specialists: {sql: }\n", SOURCE) == expected


def test_defaults_at_the_top_may_have_any_order() -> None:
    text = "specialists:\n  sql: {block_size: 8}\n  shell:\n  far: {addresses: ['a:1']}\nblock_size: 32\nreplicas: 2\n"
    read = parse_ensemble(text, SOURCE)
    assert [one.block_size for one in read.specialists] == [8, 32, 32]
    assert [one.replicas for one in read.specialists] == [2, 2, 0]


def test_short_form_of_an_intent_is_its_specialist() -> None:
    text = "specialists: {sql: }\nintents: {query: sql, ask: , review: {task: review}}\n"
    assert parse_ensemble(text, SOURCE).intents == (
        IntentConfig("query", specialist="sql"),
        IntentConfig("ask"),
        IntentConfig("review", task="review"),
    )


def test_tasks_keep_values_that_the_file_omits() -> None:
    read = parse_ensemble("specialists: {sql: }\ntasks: {json_parsing: {top_p: 0.5}, poem: {temperature: 1}}\n", SOURCE)
    assert named(read.tasks, "json_parsing") == TaskConfig("json_parsing", 0.2, 2048, 0.5, 1.0, verify="json")
    assert named(read.tasks, "poem") == TaskConfig("poem", temperature=1.0)
    assert read.tasks[0] == DEFAULT_TASKS[0]
    assert [task.name for task in read.tasks] == [*(task.name for task in DEFAULT_TASKS), "poem"]


def test_default_tasks_match_the_design() -> None:
    table = {
        task.name: (task.temperature, task.max_tokens, task.repetition_penalty, task.top_p) for task in DEFAULT_TASKS
    }
    assert table["json_parsing"] == (0.2, 2048, 1.0, 0.95)
    assert table["creative_writing"] == (0.8, 4096, 1.1, 0.95)
    assert table["code_generation"] == (0.4, 8192, 1.05, 0.95)
    assert table["default"] == (0.6, 2048, 1.1, 0.95)


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    text = "specialists:\n  a: {model: m.gguf, adapters: {x: ../x}}\n  b: {model: /m}\n  c: {model: ~/m}\n  d:\n"
    (tmp_path / "conf" / "e.yaml").write_text(text + "  e: {addresses: [unix:run/s, unix:/s]}\n")
    read = read_ensemble(Path("conf/e.yaml"))
    folder = tmp_path / "conf"
    assert [one.model for one in read.specialists] == [f"{folder}/m.gguf", "/m", "/home/me/m", "demo", "demo"]
    assert read.specialists[0].adapters == {"x": f"{folder}/../x"}
    assert read.specialists[4].addresses == (f"unix:{folder}/run/s", "unix:/s")
    assert read.source == folder / "e.yaml"


def test_yaml_booleans_are_text_in_text_fields() -> None:
    text = "specialists:\n  no: {describe: 12:30, examples: [on, 1.10, 0x1F, 2001-01-01, yes]}\ndefault: no\n"
    (specialist,) = parse_ensemble(text, SOURCE).specialists
    assert (specialist.name, specialist.describe) == ("no", "12:30")
    assert specialist.examples == ("on", "1.10", "0x1F", "2001-01-01", "yes")


def test_alias_is_expanded() -> None:
    text = "specialists:\n  a: &a {system: hi, block_size: 8}\n  b: *a\n"
    one, other = parse_ensemble(text, SOURCE).specialists
    assert (other.system, other.block_size) == (one.system, one.block_size) == ("hi", 8)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("192m", 192 << 20), ("1g", 1 << 30), ("1.5GiB", 3 << 29), ("64K", 64 << 10), ("4096", 4096), ("1_000", 1000)],
)
def test_valid_size(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes
    assert parse_size(format_size(num_bytes)) == num_bytes


@pytest.mark.parametrize("text", ["", "m", "1mb", "1 m", "-1m", "1e3", "1__0", "1.5", "0x10", "inf", "\uff11m"])
def test_invalid_size(text: str) -> None:
    assert parse_size(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2", 2), ("0.5", 0.5), ("250ms", 0.25), ("2s", 2), ("1m", 60), ("1.5h", 5400), ("1e-3", 0.001), ("50us", 5e-5)],
)
def test_valid_duration(text: str, expected: float) -> None:
    assert parse_duration(text) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("text", ["", "s", "1 s", "-1s", "1d", ".nan", "nan", "inf", ".inf", "1:30", "1_", "\u0663s"])
def test_invalid_duration(text: str) -> None:
    assert parse_duration(text) is None


def test_schema_imports_without_yaml() -> None:
    modules = "octet.config.ensemble, octet.config.loader, octet.config.reload, octet.config.fields, octet.cli.check"
    script = f"import {modules}, sys; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
