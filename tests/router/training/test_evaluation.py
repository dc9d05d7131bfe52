"""The figures of an evaluation are exact, and the default classifier reaches its required accuracy."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.cli import main
from octet.cli.router import HELD_OUT_FILE
from router.routing.classifier.base import Distribution
from router.routing.classifier.linear import DEFAULT_FILE, read_classifier
from router.routing.training.evaluation import calibration_error, evaluate
from router.routing.training.records import InvalidRecord, LabelledPrompt, read_records, write_records
from tests.router.training.corpora import small_corpus

TOP1, TOP2, CALIBRATION_ERROR = 0.84, 0.92, 0.06


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


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[]", "an object"),
        ('{"text": "", "label": "a", "source": "s"}', "text must"),
        ('{"text": "t", "source": "s"}', "label must"),
        ('{"text": "t", "label": 3, "source": "s"}', "label must"),
        ('{"text": "t", "label": "a", "source": "s", "is_prompt": 1}', "is_prompt must"),
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
