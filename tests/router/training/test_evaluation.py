"""The figures of an evaluation are exact, and the default classifier reaches its required accuracy."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.cli import main
from octet.cli.router import HELD_OUT_FILE
from octet.config.ensemble import RuleConfig
from router.routing.classifier.base import Distribution
from router.routing.classifier.linear import DEFAULT_FILE, read_classifier
from router.routing.training.evaluation import calibration_error, evaluate
from router.routing.training.records import InvalidRecord, LabelledPrompt, read_records, write_records
from router.routing.training.rule_precision import measure_rules
from tests.router.training.corpora import small_corpus

TOP1, TOP2, CALIBRATION_ERROR = 0.85, 0.94, 0.07


class FixedClassifier:
    """A classifier that gives every text the probabilities 0.6 for a, 0.3 for b and 0.1 for c."""

    digest = "f" * 64
    labels = ("a", "b", "c")

    def classify(self, texts: Sequence[str]) -> list[Distribution]:
        return [Distribution((("a", 0.6), ("b", 0.3), ("c", 0.1)))] * len(texts)


def test_the_figures_of_a_fixed_classifier_are_exact() -> None:
    labels = ["a"] * 6 + ["b"] * 3 + ["c"]
    found = evaluate(FixedClassifier(), [LabelledPrompt("t", label, "s") for label in labels])
    assert (found.overall.top1, found.overall.top2) == (0.6, 0.9)
    assert found.overall.calibration_error == pytest.approx(0)
    assert found.confusion == ((6, 0, 0), (3, 0, 0), (1, 0, 0))
    assert found.by_label["b"].top1 == 0 and found.by_label["b"].top2 == 1
    with pytest.raises(ValueError, match="labels d are unknown"):
        evaluate(FixedClassifier(), [LabelledPrompt("t", "d", "s")])


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_the_calibration_error_is_the_sum_over_bins(pairs: list[tuple[float, bool]]) -> None:
    confidence, right = np.array([p for p, _ in pairs]), np.array([float(r) for _, r in pairs])
    expected = 0.0
    for number in range(15):
        inside = [i for i, p in enumerate(confidence) if min(int(p * 15), 14) == number]
        if inside:
            expected += abs(right[inside].mean() - confidence[inside].mean()) * len(inside) / len(pairs)
    assert calibration_error(confidence, right) == pytest.approx(expected)


def test_the_default_classifier_is_accurate_on_held_out_sources() -> None:
    overall = evaluate(read_classifier(DEFAULT_FILE), read_records([HELD_OUT_FILE])).overall
    assert overall.top1 >= TOP1
    assert overall.top2 >= TOP2
    assert overall.calibration_error <= CALIBRATION_ERROR


def test_public_programming_tasks_go_to_algo(shared_data: Path) -> None:
    with gzip.open(shared_data / "humaneval-x" / "humaneval_cpp.jsonl.gz", "rt") as file:
        prompts = [json.loads(line)["prompt"] for line in file]
    tops = [distribution.top for distribution in read_classifier(DEFAULT_FILE).classify(prompts)]
    assert tops.count("algo") / len(tops) > 0.85


def test_public_compiler_errors_go_to_debug(shared_data: Path) -> None:
    rows = [json.loads(line) for line in (shared_data / "drrepair" / "err-dev.1000.jsonl").read_text().splitlines()]
    texts = ["\n".join(r["code"] for r in row["code_lines"]) + f"\nerror: {row['err_line']['msg']}" for row in rows]
    tops = [distribution.top for distribution in read_classifier(DEFAULT_FILE).classify(texts)]
    assert tops.count("debug") / len(tops) > 0.95


def test_the_command_line_trains_and_then_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = tmp_path / "mine.jsonl", tmp_path / "mine.safetensors"
    write_records(data, small_corpus())
    assert main(["router", "train", "--data", str(data), "--out", str(out)]) == 0
    assert "sha256" in capsys.readouterr().out
    assert main(["router", "eval", "--classifier", str(out), "--data", str(data), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["overall"]["top1"] == 1.0
    assert set(figures["by_source"]) == {"asks", "notes", "orders"}
    assert main(["router", "eval", "--classifier", str(out), "--data", str(data)]) == 0
    out_text = capsys.readouterr().out
    assert "by specialist" in out_text and "confusion" in out_text


def test_by_default_each_source_of_the_data_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "mine.jsonl"
    write_records(data, [*small_corpus(), LabelledPrompt("a reference page", "sql", "pages", is_prompt=False)])
    assert main(["router", "eval", "--data", str(data)]) == 0
    report = capsys.readouterr().out
    for part in ("left out of training, 36 prompts of 3 sources", "confusion", "calibration", "most confident errors"):
        assert part in report
    assert main(["router", "eval", "--data", str(data), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert set(figures["by_source"]) == {"asks", "notes", "orders"}
    assert sum(each["num"] for each in figures["calibration"]) == 36
    assert figures["rules"] == [], "the default rules are about other specialists"
    write_records(data, [replace(each, label=each.label.replace("sql", "build")) for each in small_corpus()])
    assert main(["router", "eval", "--data", str(data), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {each["rule"] for each in figures["rules"]} >= {"linker-output", "build-text"}


@pytest.mark.parametrize("label", ["reject", "sql"])
@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_file_with_one_label_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, label: str
) -> None:
    data, out = tmp_path / "mine.jsonl", tmp_path / "mine.safetensors"
    write_records(data, [each for each in small_corpus() if each.label == label])
    given_out = ["--out", str(out)] if command == "train" else []
    assert main(["router", command, "--data", str(data), *given_out]) == 2
    assert f"at least 2 labels, one of them a specialist; got {label}" in capsys.readouterr().err
    assert not out.exists()


def test_each_rule_has_its_own_precision() -> None:
    rules = (
        RuleConfig("first", "a", contains=("xyzzy",), at_least=1),
        RuleConfig("second", "b", contains=("xyzzy", "plugh"), at_least=1),
        RuleConfig("third", "c", contains=("never",), at_least=1),
    )
    texts = [("xyzzy plugh", "a"), ("xyzzy", "b"), ("plugh", "b"), ("nothing", "a")]
    found = measure_rules(rules, [LabelledPrompt(text, label, "s") for text, label in texts])
    assert [(each.rule, each.fired, each.precision) for each in found] == [
        ("first", 2, 0.5),
        ("second", 1, 1.0),
        ("third", 0, None),
    ]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=20))
def test_the_worst_errors_are_errors(pairs: list[tuple[str, str]]) -> None:
    found = evaluate(FixedClassifier(), [LabelledPrompt(f"text {text}", label, "s") for text, label in pairs])
    assert all(each.label != each.routed == "a" for each in found.worst)
    assert len(found.worst) == min(10, sum(label != "a" for _, label in pairs))
    assert sum(each.num for each in found.calibration) == len(pairs)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[]", "an object"),
        ('{"text": "", "label": "a", "source": "s"}', "text must"),
        ('{"text": "t", "source": "s"}', "label must"),
        ('{"text": "t", "label": 3, "source": "s"}', "label must"),
        ('{"text": "t", "label": "a", "source": "s", "is_prompt": 1}', "is_prompt must"),
        ('{"text": "t", "label": "a", "source": "s", "weight": 0}', "weight must"),
        ('{"text": "t", "label": "a", "source": "s", "weight": "2"}', "weight must"),
        (json.dumps({"text": "t", "label": "a" * 257, "source": "s"}), "label has 257 characters; the limit is 256"),
        (json.dumps({"text": "t", "label": "a", "source": "s" * 257}), "source has 257 characters"),
        (json.dumps({"text": "t", "label": "a", "source": "s", "ok": ["a", "b" * 257]}), "ok has 257 characters"),
        ('{"text": "t", "label": "\\ud800", "source": "s"}', "label must be valid Unicode"),
        ('{"text": "t", "label": "a", "source": "\\udfff"}', "source must be valid Unicode"),
        ('{"text": "t", "label": "a", "source": "s", "ok": ["a", "\\ud800"]}', "ok must be valid Unicode"),
        ("", "no records"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, why: str) -> None:
    data = tmp_path / "bad.jsonl"
    data.write_text(f"{line}\n")
    with pytest.raises(InvalidRecord, match=why):
        read_records([data])
    assert main(["router", "eval", "--data", str(data)]) == 2
    assert "bad.jsonl" in capsys.readouterr().err


def test_an_invalid_classifier_file_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no").write_bytes(b"nothing")
    assert main(["router", "eval", "--classifier", str(tmp_path / "no")]) == 2
    assert f"{tmp_path / 'no'}: the file is not in the safetensors format" in capsys.readouterr().err
