"""An evaluation for people to read."""

from collections.abc import Iterator, Mapping

from router.training.measure import Evaluation, Score


def as_text(evaluation: Evaluation) -> str:
    return "\n".join(_lines(evaluation))


def _lines(evaluation: Evaluation) -> Iterator[str]:
    yield f"classifier {evaluation.digest[:12]}, {evaluation.overall.num} prompts"
    yield ""
    yield from _scores("overall", {"all": evaluation.overall})
    yield from _scores("by specialist", evaluation.by_label)
    yield from _scores("by source", evaluation.by_source)
    yield from _confusion(evaluation)


def _scores(title: str, scores: Mapping[str, Score]) -> Iterator[str]:
    width = max(len(name) for name in (title, *scores))
    yield f"{title:<{width}}  prompts   top-1   top-2     ECE  confidence"
    for name, score in scores.items():
        shares = f"{score.top1:7.1%} {score.top2:7.1%} {score.calibration_error:7.3f} {score.confidence:11.3f}"
        yield f"{name:<{width}}  {score.num:>7} {shares}"
    yield ""


def _confusion(evaluation: Evaluation) -> Iterator[str]:
    width = max(len(label) for label in evaluation.labels)
    columns = [max(4, len(label)) for label in evaluation.labels]
    yield "confusion: a row is what was right, a column where it went"
    yield " " * width + "".join(f"  {label:>{w}}" for label, w in zip(evaluation.labels, columns, strict=True))
    for label, row in zip(evaluation.labels, evaluation.confusion, strict=True):
        cells = "".join(f"  {count or '.':>{w}}" for count, w in zip(row, columns, strict=True))
        yield f"{label:<{width}}{cells}"
