"""Every command that prints results accepts `--json`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octet.cli import main
from tests.bench.test_cli import TRACE
from tests.octet.cli.chat.terminal import ROOT
from tests.octet.cli.commands.tree import tree
from tests.octet.client.server import scripted
from tests.router.operator.harness import running_operator

WITHOUT = {
    "router": "serves until it is stopped; its one line is what `octet serve --json` puts into JSON",
    "specialist": "serves until it is stopped; its one line is for the process that started it",
    "completion": "prints a script, for a shell to read",
}
ASKED = (
    ("breakers",),
    ("breaker", "hold", "stl", "--open", "--reason", "r"),
    ("breaker", "release", "stl"),
    ("knobs",),
    ("knobs", "set", "review.priority_floor=5"),
    ("knobs", "release", "review.priority_floor"),
    ("lanes",),
    ("adapters",),
    ("adapters", "load", "stl", "my-lora"),
    ("adapters", "promote", "stl"),
    ("adapters", "rollback", "stl"),
    ("replicas",),
    ("drain", "stl"),
    ("undrain", "stl"),
    ("shadow", "report"),
    ("audit",),
    ("router", "tune"),
)
Captured = pytest.CaptureFixture[str]


def test_every_command_with_output_has_json() -> None:
    doing = [command for command in tree() if command.does_something]
    assert len(doing) > 30
    without = {command.name for command in doing if not any("--json" in flags for flags in command.options)}
    assert without == set(WITHOUT)


def documents(capsys: Captured) -> list[Any]:
    """Return the lines of stdout, each parsed as JSON."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_operator_commands_write_one_json_document(capsys: Captured) -> None:
    with running_operator() as at:
        for asked in ASKED:
            assert main([*asked, "--json", "--address", at.address]) == 0, asked
            (document,) = documents(capsys)
            assert isinstance(document, dict) and document


def test_caller_commands_write_json_documents(capsys: Captured) -> None:
    with scripted() as script:
        for asked in (("generate", "x"), ("route", "x"), ("receipt", "mine"), ("cancel", "mine")):
            assert main([*asked, "--json", "--address", script.address]) == 0, asked
            assert all(isinstance(each, dict) for each in documents(capsys))
        assert main(["cancel", "mine", "--json", "--address", script.address]) == 0
        assert documents(capsys) == [{"request_id": "mine", "cancelled": True}]


def test_bench_without_a_file_writes_records_and_no_table(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in TRACE))
    assert main(["bench", "kv", "--trace", str(trace), "--pool-sizes", "2", "--json"]) == 0
    records = documents(capsys)
    assert records and all(set(record) >= {"bench", "case", "metric", "value"} for record in records)


def test_training_reports_its_file(tmp_path: Path, capsys: Captured) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "classifier.safetensors"
    words = {"sql": "select join table index", "shell": "bash pipe quote loop", "reject": "bread cake soup tea"}
    rows = [
        {"text": f"{word} {other} {source}", "label": label, "source": f"s{source}"}
        for label, text in words.items()
        for word in text.split()
        for other in text.split()
        for source in range(3)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["router", "train", "--data", str(data), "--out", str(out), "--json"]) == 0
    (document,) = documents(capsys)
    assert (document["file"], document["bytes"]) == (str(out), out.stat().st_size)
    assert set(document) == {"file", "bytes", "sha256", "left_out_top1", "temperature"}


def test_a_configuration_is_checked_in_json(tmp_path: Path, capsys: Captured) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("specialists: 3\n")
    assert main(["check", str(wrong), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["valid"] is False
    assert main(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True


def test_serve_reports_ready_in_json(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("specialists: {sql: {engine: sim, describe: Databases.}}\nrouter: {http: {port: 0}}\n")
    command = [sys.executable, "-m", "octet.cli", "serve", str(file), "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        ready = json.loads(running.stdout.readline())
        running.terminate()
        rest = running.stdout.read()
    assert running.returncode == 0 and rest == ""
    assert ready["specialists"] == ["sql"] and ready["processes"] == 2
    assert ready["address"].startswith("127.0.0.1:") and ready["http"].startswith("http://127.0.0.1:")
