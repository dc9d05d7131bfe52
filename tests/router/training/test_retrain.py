"""Shadows improve a classifier that was made worse on purpose, and the gate refuses a worse one."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from math import comb
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octet.cli import main
from octet.client.records import Comparison
from octet.v1 import operator_pb2 as wire
from router.quality.evaluation import extract_features
from router.routing.classifier.features import BUCKET_BITS
from router.routing.classifier.linear import LinearClassifier, decode_model
from router.routing.classifier.reader import FEATURE_VERSION, VIEW_FAMILIES
from router.routing.training.records import LabelledPrompt, write_records
from router.routing.training.retrain import (
    SOURCE,
    ShadowExamples,
    _chance_of_wins,
    collect_examples,
    judge_retrained,
    retrain,
    split_reference,
)
from router.routing.training.train import train
from tests.router.training.corpora import small_corpus

SQL, SHELL, REJECT = "sql", "shell", "reject"
SIDES = {SQL: SHELL, SHELL: SQL}
TOPICS = {
    SQL: ("select", "join", "table", "index", "row", "view", "schema", "trigger", "cursor", "commit"),
    SHELL: ("bash", "pipe", "grep", "loop", "script", "awk", "sed", "cron", "chmod", "glob"),
}
COMMON = ("how", "do", "I", "use", "this")


def prompts(number: int, seed: int, source: str) -> list[LabelledPrompt]:
    """Draw prompts that mention two to four words of their topic among common ones."""
    random, found = Random(seed), []
    for index in range(number):
        label = (SQL, SHELL)[index % 2]
        words = [*random.sample(TOPICS[label], random.randint(2, 4)), *random.choices(COMMON, k=3)]
        found.append(LabelledPrompt(" ".join(random.sample(words, len(words))), label, source))
    return found


REFERENCE = split_reference(prompts(200, 4, "reference"))


def mislabelled(records: Sequence[LabelledPrompt], share: float, seed: int = 1) -> list[LabelledPrompt]:
    random = Random(seed)
    return [
        replace(each, label=SIDES[each.label]) if each.label in SIDES and random.random() < share else each
        for each in records
    ]


def corpus() -> list[LabelledPrompt]:
    return [*small_corpus(), *prompts(60, 1, "one"), *prompts(60, 2, "two")]


def compared(
    classifier: LinearClassifier, records: Sequence[LabelledPrompt], *, keep_text: bool = False, honest: bool = True
) -> list[Comparison]:
    """Return what the router stores of these requests if each has a shadow and only the right specialist passes."""
    found = []
    for number, (record, scores) in enumerate(
        zip(records, classifier.classify([each.text for each in records]), strict=True)
    ):
        primary, shadow, *_ = (name for name, _ in scores.scores if name != REJECT)
        outcomes = ["passed" if (name == record.label) == honest else "failed" for name in (primary, shadow)]
        indices, values = extract_features(record.text)
        comparison = wire.Comparison(
            request_id=f"r{number}",
            primary=primary,
            shadow=shadow,
            why="low_confidence",
            primary_outcome=outcomes[0],
            shadow_outcome=outcomes[1],
            feature_indices=indices,
            feature_values=values,
            feature_version=FEATURE_VERSION,
            text=record.text if keep_text else "",
        )
        found.append(Comparison.from_wire(comparison))
    return found


@cache
def trained_on_corpus() -> bytes:
    return train(corpus()).data


@cache
def trained_on_spoilt_corpus() -> bytes:
    return train(mislabelled(corpus(), 0.45)).data


def spoilt() -> tuple[list[LabelledPrompt], LinearClassifier]:
    return mislabelled(corpus(), 0.45), decode_model(trained_on_spoilt_corpus())


@pytest.mark.parametrize("keep_text", [False, True])
def test_shadows_improve_a_classifier_that_was_made_worse(keep_text: bool) -> None:
    bad, base = spoilt()
    examples = collect_examples(compared(base, prompts(400, 3, "live"), keep_text=keep_text), base.labels)
    data = retrain(bad, examples, REFERENCE.calibrating)
    report = judge_retrained(base, data, examples, REFERENCE.judging, margin=0.01)
    assert not report.refusals
    assert report.held_back[1].top1 > report.held_back[0].top1 and report.won > report.lost
    before, after = report.reference
    assert after.top1 > before.top1 + 0.05, "neither was trained on the reference"
    assert report.retrained == sha256(data).hexdigest() and report.base == base.digest
    assert data == retrain(bad, examples, REFERENCE.calibrating)


def test_stored_features_train_like_the_text() -> None:
    bad, base = spoilt()
    live = prompts(60, 3, "live")
    known, unknown = (collect_examples(compared(base, live, keep_text=kept), base.labels) for kept in (True, False))
    assert [each.features is None for each in known.trained] == [True] * len(known.trained)
    assert all(each.features is not None for each in unknown.trained)
    assert retrain(bad, known, REFERENCE.calibrating) == retrain(bad, unknown, REFERENCE.calibrating)


def test_the_gate_refuses_a_worse_classifier() -> None:
    """Wrong verdicts make a good classifier worse. The gate says by how much."""
    good = corpus()
    base = decode_model(trained_on_corpus())
    examples = collect_examples(compared(base, prompts(400, 3, "live"), honest=False), base.labels)
    true = collect_examples(compared(base, prompts(400, 3, "live")), base.labels)
    data = retrain(good, examples, REFERENCE.calibrating)
    report = judge_retrained(base, data, replace(examples, held_back=true.held_back), REFERENCE.judging, 0.01)
    assert len(report.refusals) >= 2
    assert "it is not better on the examples held back" in report.refusals[0]
    assert "top-1 on the reference" in report.refusals[1]
    learned = judge_retrained(base, data, examples, REFERENCE.judging, 0.01)
    assert learned.won > learned.lost, "the wrong verdicts were learned"
    assert "top-1 on the reference" in " ".join(learned.refusals), "only the reference shows that they were wrong"


def test_an_equal_classifier_and_too_few_examples_are_refused() -> None:
    data = trained_on_corpus()
    base = decode_model(data)
    live = collect_examples(compared(base, prompts(200, 3, "live")), base.labels)
    same = judge_retrained(base, data, live, REFERENCE.judging, 0.0)
    assert same.refusals and (same.won, same.lost, same.chance) == (0, 0, 1.0)
    few = judge_retrained(
        base, trained_on_corpus(), ShadowExamples((), live.held_back[:19], ()), REFERENCE.judging, 0.0
    )
    assert few.refusals == ("only 19 examples are held back; at least 20 are needed",)


def spelled(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))  # all digits look alike to the classifier


def one(number: int, passed: str, other: str, **fields: Any) -> Comparison:
    given: dict[str, Any] = {
        "primary": SQL,
        "shadow": SHELL,
        "why": "rule_routed",
        "text": f"prompt {spelled(number)}",
        **fields,
    }
    return Comparison.from_wire(wire.Comparison(primary_outcome=passed, shadow_outcome=other, **given))


def test_examples_have_the_label_of_the_only_answer_that_passed() -> None:
    given = [
        *(one(n, "passed", "failed") for n in range(50)),
        *(one(50 + n, "failed", "passed", why="low_confidence") for n in range(50)),
        one(100, "passed", "passed"),
        one(101, "failed", "skipped"),
        one(102, "failed", "passed", why="fresh_lane"),
        one(103, "failed", "passed", shadow="stranger"),
        one(104, "failed", "passed", text=""),
    ]
    found = collect_examples(given, (SQL, SHELL, REJECT))
    everything = [*found.trained, *found.held_back]
    assert {each.source for each in everything} == {SOURCE}
    assert sorted((each.text, each.label) for each in everything) == sorted(
        (f"prompt {spelled(number)}", SQL if number < 50 else SHELL) for number in range(100)
    )
    assert 15 <= len(found.held_back) <= 45
    assert dict(found.left_out) == {
        "both, none or not all answers passed": 2,
        "shadows that evaluate a lane": 1,
        "unknown specialists": 1,
        "without text and features": 1,
    }


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60), st.randoms(use_true_random=False))
@example([(1, True)] * 2 + [(1, False)] * 3, Random(1))
def test_a_prompt_counts_once_however_often_it_was_sent(sent: list[tuple[int, bool]], random: Random) -> None:
    """Copies are no independent evidence: neither do they weigh more in training, nor do they vote at the gate."""
    passed: dict[str, Counter[str]] = defaultdict(Counter)
    for number, is_primary in sent:
        passed[f"prompt {spelled(number)}"][SQL if is_primary else SHELL] += 1
    given = [one(number, *(("passed", "failed") if each else ("failed", "passed"))) for number, each in sent]
    found = collect_examples(given, (SQL, SHELL, REJECT))
    everything = [*found.trained, *found.held_back]
    assert sorted(each.text for each in everything) == sorted(passed)
    assert all(passed[each.text][each.label] == max(passed[each.text].values()) for each in everything)
    assert dict(found.left_out).get("repeated prompts", 0) == len(sent) - len(passed)
    random.shuffle(given)
    again = collect_examples(given, (SQL, SHELL, REJECT))
    assert {each.text for each in again.held_back} == {each.text for each in found.held_back}


def test_one_prompt_that_is_sent_again_and_again_opens_no_gate() -> None:
    bad, base = spoilt()
    (prompt,) = prompts(1, 9, "live")
    live = [each for each in prompts(400, 3, "live") if collect_examples(compared(base, [each]), base.labels).held_back]
    wrong = [each for each in live if base.classify([each.text])[0].scores[0][0] != each.label][:1]
    near = [replace(each, text=f"{each.text} {word}") for each in wrong for word in COMMON]
    examples = collect_examples(compared(base, [*wrong * 30, *near * 12, prompt]), base.labels)
    assert len(examples.held_back) <= 1 + len(near)
    report = judge_retrained(base, retrain(bad, examples, REFERENCE.calibrating), examples, REFERENCE.judging, 0.01)
    assert report.won <= 1 + len(near) and "examples are held back" in report.refusals[0]


@given(st.integers(0, 400).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
@example((0, 0))
def test_the_probability_of_chance_is_that_of_fair_coins(drawn: tuple[int, int]) -> None:
    won, total = drawn
    exact = sum(comb(total, wins) for wins in range(won, total + 1)) / 2**total
    assert _chance_of_wins(won, total) == pytest.approx(exact, rel=1e-9)


def test_the_probability_of_chance_of_many_wins() -> None:
    assert _chance_of_wins(10_000, 20_000) == pytest.approx(0.5, abs=0.003)
    assert 0 < _chance_of_wins(50_800, 100_000) < 1e-6


def test_a_small_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 40 prompts, got 39"):
        split_reference(prompts(39, 1, "r"))


@pytest.mark.parametrize("index", [len(VIEW_FAMILIES) << BUCKET_BITS, 2**32 - 1])
def test_impossible_features_are_refused(index: int) -> None:
    outcomes: dict[str, Any] = {"primary_outcome": "passed", "shadow_outcome": "failed"}
    outcomes["feature_version"] = FEATURE_VERSION
    bad = wire.Comparison(request_id="x", primary=SQL, why="low_confidence", feature_indices=[index], **outcomes)
    with pytest.raises(ValueError, match="comparison x: feature_indices"):
        collect_examples([Comparison.from_wire(bad)], (SQL, SHELL))


@given(st.lists(st.tuples(st.sampled_from((0, 1, FEATURE_VERSION, FEATURE_VERSION + 1)), st.booleans()), max_size=9))
def test_features_of_another_version_are_skipped_and_counted(kinds: list[tuple[int, bool]]) -> None:
    """A kept text can be read anew, so its version does not matter."""
    kept = [
        wire.Comparison(
            request_id=f"r{n}", primary=SQL, why="low_confidence", primary_outcome="passed", shadow_outcome="failed",
            feature_indices=[n], feature_version=version, text=f"join {'x' * n}" if has_text else "",
        )
        for n, (version, has_text) in enumerate(kinds)
    ]  # fmt: skip
    examples = collect_examples(map(Comparison.from_wire, kept), (SQL, SHELL))
    old = sum(version != FEATURE_VERSION and not has_text for version, has_text in kinds)
    assert len(examples.trained) + len(examples.held_back) == len(kinds) - old
    assert dict(examples.left_out) == ({"features of another version of Octet": old} if old else {})


def test_the_command_writes_a_classifier_only_through_the_gate(tmp_path: Path, capsys: Any) -> None:
    bad, base = spoilt()
    files = {name: tmp_path / name for name in ("base", "corpus", "reference", "shadows", "worse", "out.safetensors")}
    files["base"].write_bytes(trained_on_spoilt_corpus())
    write_records(files["corpus"], bad)
    write_records(files["reference"], prompts(200, 4, "reference"))
    for name, honest in (("shadows", True), ("worse", False)):
        kept = compared(base, prompts(400, 3, "live"), honest=honest)
        files[name].write_text("".join(json.dumps(each.to_dict()) + "\n" for each in kept))

    def command(shadows: str) -> int:
        options = {"--classifier": "base", "--data": "corpus", "--reference": "reference", "--out": "out.safetensors"}
        given = [text for option, name in options.items() for text in (option, str(files[name]))]
        return main(["router", "train", "--from-shadow", str(files[shadows]), *given])

    report_file = tmp_path / "out.report.json"
    assert command("worse") == 1
    assert "refused: its top-1 on the reference" in capsys.readouterr().out
    assert not files["out.safetensors"].exists() and not json.loads(report_file.read_text())["promoted"]
    assert command("shadows") == 0
    out, report = capsys.readouterr().out, json.loads(report_file.read_text())
    digest = sha256(files["out.safetensors"].read_bytes()).hexdigest()
    assert digest in out and report["retrained"] == digest and report["promoted"]
    assert decode_model(files["out.safetensors"].read_bytes()).labels == base.labels
    alone = ["router", "train", "--from-shadow", str(files["shadows"])]
    assert main([*alone, "--data", str(files["corpus"])]) == 2, "the corpus must fit the classifier"
    assert "--data must be what --classifier was trained on" in capsys.readouterr().err
    assert main(alone) == 2, "the shadows' specialists must be known"
    assert "no comparison shows which specialist was right; left out: 400 (unknown spec" in capsys.readouterr().err
