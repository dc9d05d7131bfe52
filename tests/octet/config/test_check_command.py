"""`octet check` reports all problems, or prints a summary."""

import argparse
import json
from pathlib import Path

import pytest

from octet.cli.check import add_check_command


def check(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_check_command(parser.add_subparsers())
    parsed = parser.parse_args(["check", *arguments])
    return int(parsed.run(parsed))


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    path = tmp_path / "wrong.yaml"
    path.write_text("specialists:\n  sql: {max_tokens: 0}\nport: 1\n")
    return str(path)


def test_every_problem_has_file_and_line(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(wrong) == 2
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert [line[: len(wrong) + 3] for line in lines] == [f"{wrong}:2:", f"{wrong}:3:"]


def test_problems_as_json(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(wrong, "--json") == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown["valid"] is False
    assert [problem["line"] for problem in shown["problems"]] == [2, 3]


def test_without_a_file_the_default_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert check() == 0
    shown = capsys.readouterr().out
    assert shown.startswith("the embedded default: cpp, 8 specialists\n")
    assert "9, including the router" in shown
    assert "1,536 MiB of KV pools plus the weights of demo" in shown


SILENT = "specialists:\n  a: {}\n  b: {}\n"


@pytest.mark.parametrize(
    ("text", "named", "remedy"),
    [
        (SILENT, "a, b", "requests that match no rule are refused unless they name a specialist; add `describe` and"),
        (SILENT + "default: a\n", "b", "no request is routed there by its text"),
        (SILENT.replace("a: {}", "a: {describe: words}"), "b", "no request is routed there by its text"),
        (SILENT + "rules: [{name: r, specialist: a, contains: [x]}]\n", "b", "or set `default`"),
        (SILENT + "intents: {x: b}\n", "a", "or set `default`"),
        (SILENT.replace("{}", "{examples: [x]}"), None, ""),
        (SILENT + "classifier: {path: default}\n", None, ""),
        ("specialists: {a: {}}\n", None, ""),
    ],
)
def test_specialists_that_no_text_leads_to_are_named(
    text: str, named: str | None, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(text)
    assert check(str(path)) == 0
    warning = capsys.readouterr().err
    assert check(str(path), "--json") == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    if named is None:
        assert (warning, warnings) == ("", [])
    else:
        assert warning.startswith(f"octet check: warning: {named}: without ") and remedy in warning
        assert warning == f"octet check: warning: {warnings[0]}\n" and len(warnings) == 1


@pytest.mark.parametrize(
    ("router", "http"),
    [
        ("{}", "127.0.0.1:8051"),
        ("{http: true}", "127.0.0.1:8051"),
        ("{http: {port: 9}}", "127.0.0.1:9"),
        ("{http: false}", None),
        ("{http: {enabled: false, port: 9}}", None),
        ("{host: localhost}", "127.0.0.1:8051"),
        ("{host: 0.0.0.0}", None),
        ("{host: 0.0.0.0, http: {}}", "127.0.0.1:8051"),
        ("{host: 0.0.0.0, http: {host: 0.0.0.0}}", "0.0.0.0:8051"),
    ],
)
def test_http_is_on_unless_disabled_or_exposed(
    router: str, http: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(f"specialists: {{a: {{}}}}\nrouter: {router}\n")
    assert check(str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["http"] == http


def test_host_memory_for_blocks_is_counted_for_every_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(
        "spill_memory: 64m\nspecialists:\n  near: {replicas: 3}\n  none: {spill_memory: 0}\n"
        "  far: {addresses: ['a:1']}\ndefault: near\n"
    )
    assert check(str(path), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["spill_bytes"] == 192 << 20
    assert {each["name"]: each["spill_bytes"] for each in shown["specialists"]} == {
        "near": 192 << 20,
        "none": 0,
        "far": 0,
    }
    assert check(str(path)) == 0
    assert "spilled blocks" in capsys.readouterr().out


def test_summary_counts_local_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(
        "kv_memory: 64m\nspecialists:\n  near: {replicas: 3}\n  far: {addresses: ['a:1', 'b:1']}\n"
        "  sim: {engine: sim}\n"
        "intents: {ask: near}\nrules: [{name: r, specialist: far, contains: [x]}]\n"
    )
    assert check(str(path), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["processes"], shown["kv_bytes"], shown["models"]) == (5, 256 << 20, ["demo"])
    assert shown["intents"] == ["ask -> near"]
    assert shown["rules"] == ["r -> far"]
    assert check(str(path)) == 0
    table = capsys.readouterr().out
    assert "a:1, b:1" in table
    assert "from descriptions and examples" in table


def test_models_must_exist_unless_no_files_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text("specialists:\n  sql: {model: gone.gguf}\n")
    assert check(str(path)) == 2
    assert capsys.readouterr().out == f"{path}:2: specialists.sql.model does not exist: {tmp_path}/gone.gguf\n"
    assert check(str(path), "--no-files") == 0
