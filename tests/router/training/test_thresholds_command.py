"""`octet router tune` with data from a router and from a file."""

import json
from pathlib import Path
from random import Random

import pytest
import yaml

from octet.cli import main
from octet.config.loader import read_ensemble
from octet.v1 import operator_pb2 as wire
from tests.router.operator.fake_control import NOW_MS, FakeComparisons
from tests.router.operator.harness import running_operator

Captured = pytest.CaptureFixture[str]
TUNE = ("router", "tune")


def comparisons(num: int, *, seed: int = 0, intent: str = "review") -> list[wire.Comparison]:
    """Return comparisons in which the primary is right less often if its confidence is lower."""
    random, made = Random(seed), []
    for number in range(num):
        confidence = random.random() / 2
        outcomes = random.random() < 0.4 + confidence, random.random() < 0.8
        primary, shadow = ("passed" if passed else "failed" for passed in outcomes)
        made.append(
            wire.Comparison(
                request_id=str(number),
                at_unix_ms=NOW_MS - 1000 * (num - number),
                intent=intent,
                primary="stl",
                shadow="debug",
                why="low_confidence",
                confidence=confidence,
                primary_outcome=primary,
                shadow_outcome=shadow,
                similarity=random.random(),
                agreed=primary == shadow,
                feature_indices=[1, 7],
                feature_values=[0.5, 1.5],
            )
        )
    return made


def test_a_file_gives_the_same_advice_as_the_router(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "comparisons.jsonl"
    with running_operator(FakeComparisons(comparisons(600))) as at:
        assert main([*TUNE, "--address", at.address, "--export", str(file), "--json"]) == 0
        live = json.loads(capsys.readouterr().out)
        assert main([*TUNE, "--address", at.address]) == 0
        text = capsys.readouterr().out
        (line,) = [each.strip() for each in text.splitlines() if "octet router tune'" in each]
        assert line.startswith("octet knobs set review.shadow_threshold=")
        assert main(["knobs", "set", line.split()[3], "--address", at.address]) == 0
        knobs = {knob.name: knob.value for knob in at.control.knobs()}
    capsys.readouterr()
    assert main([*TUNE, "--from", str(file), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert live["intents"]["review"]["now"] == 0.5 and stored["intents"]["review"]["now"] is None
    stored["intents"]["review"]["now"] = 0.5
    assert stored == live
    threshold = live["intents"]["review"]["proposed"]["threshold"]
    assert knobs["review.shadow_threshold"] == threshold
    assert "the data reach confidence 0.50" in text and "nothing is known about higher confidence" in text
    assert "the smallest threshold that catches 90% of the requests in which only the shadow was right" in text
    lines = text.splitlines()
    start = lines.index("  intents:")
    pasted = "\n".join(each[2:] for each in lines[start : start + 3])
    assert yaml.safe_load(pasted) == {"intents": {"review": {"shadow_threshold": threshold}}}
    config = tmp_path / "octet.yaml"
    config.write_text(f"specialists: {{stl: {{engine: sim}}}}\n{pasted}\n")
    assert read_ensemble(config).intents[0].shadow_threshold == threshold
    assert max(map(len, lines)) <= 120


def test_too_little_data_gives_no_proposal_and_a_reason(capsys: Captured) -> None:
    with running_operator(FakeComparisons(comparisons(40))) as at:
        assert main([*TUNE, "--address", at.address]) == 0
    text = capsys.readouterr().out
    assert "no proposal: 36 requests in which only the shadow was right are needed, " in text
    assert "at the current rate that takes about " in text
    assert "proposed:" not in text and "intents:" not in text


def test_useless_shadows_are_reported(capsys: Captured) -> None:
    useless = wire.Comparison(
        why="low_confidence", confidence=0.1, primary_outcome="passed", shadow_outcome="passed", agreed=True
    )
    with running_operator(FakeComparisons([useless] * 500)) as at:
        assert main([*TUNE, "--address", at.address]) == 0
    text = capsys.readouterr().out
    assert "36 are missing" in text and "shadowing may not be worth its cost" in text


def test_only_recent_data_is_used_and_missing_data_is_reported(capsys: Captured) -> None:
    with running_operator(FakeComparisons(comparisons(400))) as at:
        assert main([*TUNE, "--address", at.address, "--last", "100s", "--budget", "0.5", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["intents"]["review"]["shadows"] == 100
        at.rows.comparisons_kept.clear()
        assert main([*TUNE, "--address", at.address]) == 0
    assert capsys.readouterr().out == "nothing to tune: no request was shadowed for low confidence\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "a line must be JSON"),
        ("[]", "an octet.v1.Comparison, as written"),
        ('{"confidence": "x"}', "an octet.v1.Comparison, as written"),
        ('{"nobody": 1}', "an octet.v1.Comparison, as written"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, capsys: Captured, line: str, says: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f'{{"request_id": "x"}}\n\n{line}\n')
    assert main([*TUNE, "--from", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"octet router tune: {file}:3: ") and says in said


def test_binary_and_missing_files_are_refused(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b"\xff\n")
    assert main([*TUNE, "--from", str(file)]) == 2
    assert "is not valid UTF-8" in capsys.readouterr().err
    assert main([*TUNE, "--from", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--catch", "1"), ("--catch", "x"), ("--budget", "0"), ("--last", "soon")])
def test_invalid_options(capsys: Captured, options: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*TUNE, *options])
    assert caught.value.code == 2 and f"got {options[1]!r}" in capsys.readouterr().err
