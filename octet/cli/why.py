"""`octet why`: the explanation of one request."""

import argparse
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

import grpc

from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_option
from octet.cli.why_sections import explanation_sections, format_headline
from octet.client.errors import Forbidden, OctetError
from octet.client.operator import Operator, RequestExplanation
from octet.client.receipts import Receipt
from octet.client.records import Timings
from octet.terminal import fold_text, format_seconds, replace_unprintable, terminal_width

_HELP = """
Shows what decided and why, the state of breakers and knobs, which replicas were
asked and how each replied, where the time went, how the request ended, and related
changes of the hour before. Receipts are kept for a limited time. A key without the
role operate sees only its tenant's requests, without shadow comparison, evaluation
and changes.

  octet why 0a4c5d1e-demo
  octet why nightly-17 --tenant batch --json"""
_OPERATOR_ONLY = "the shadow comparison, the evaluation of samples and earlier changes"
_INDENT = "  "
_MIN_WIDTH = 20
_BAR = 32
_STAGES = ("decision", "dispatch", "admission", "first chunk")
_LABEL = 26
_UNITS_PER_SECOND = 10_000  # times are rounded to a tenth of a millisecond
_MAX_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class ExplanationSection:
    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    headline: str
    parts: tuple[ExplanationSection, ...]  # sections that are not empty
    lines: tuple[str, ...]  # how the time was spent; not to be folded


class TimeStage(NamedTuple):
    """A stage of a request. Its start and end are in tenths of a millisecond since arrival."""

    name: str
    start: int
    end: int


def add_why_command(commands: Commands) -> None:
    about = "explain one request in plain words"
    option = partial(add_option, cli.add_operator_command(commands, "why", about, cli.call_operator(_why), _HELP))
    option("request_id", "REQUEST_ID", "from its receipt, or from `octet receipts`")
    option("--tenant", "NAME", "tenant of the request, for an operator's key", default="")


def _why(operator: Operator, arguments: argparse.Namespace) -> cli.Result:
    found, missing = _fetch(operator, arguments)
    explanation = explain_request(found, is_complete=not missing)
    width = terminal_width()
    text = format_explanation(explanation, width)
    if missing:
        text += "\n\n" + "\n".join(fold_text(missing, width))
    return {**found.to_dict(), "told": asdict(explanation), "missing": missing}, text


def _fetch(operator: Operator, arguments: argparse.Namespace) -> tuple[RequestExplanation, str]:
    """Return the explanation, and a note on missing parts, which is empty if nothing is missing."""
    try:
        return operator.explain(arguments.request_id, tenant=arguments.tenant), ""
    except Forbidden:
        missing = f"This is the caller's own receipt. Only operators see {_OPERATOR_ONLY}: this key may not operate."
    except OctetError as error:
        if error.code != grpc.StatusCode.UNIMPLEMENTED:
            raise
        missing = f"This is the receipt only: the router does not report {_OPERATOR_ONLY}."
    with cli.open_client(arguments) as router:
        receipt = router.receipt(arguments.request_id, tenant=arguments.tenant)
        return RequestExplanation(receipt, None, "", ()), missing


def explain_request(found: RequestExplanation, *, is_complete: bool = True) -> Explanation:
    """Explain a request. `is_complete` means that `found` has all events of the request."""
    receipt = found.receipt
    headline = f"request {receipt.request_id or 'without an id'}: {format_headline(receipt)}"
    sections = [
        ExplanationSection(title, tuple(replace_unprintable(each) for each in sentences if each))
        for title, sentences in explanation_sections(found, is_complete=is_complete)
    ]
    parts = tuple(each for each in sections if each.sentences)
    return Explanation(replace_unprintable(headline), parts, format_waterfall(receipt))


def format_explanation(explanation: Explanation, width: int) -> str:
    blocks = ["\n".join(fold_text(explanation.headline, width))]
    room = max(_MIN_WIDTH, width - len(_INDENT))
    for section in explanation.parts:
        lines = [f"{_INDENT}{line}" for sentence in section.sentences for line in fold_text(sentence, room)]
        blocks.append("\n".join([section.title, *lines]))
        if section.title == "end":
            blocks.append("\n".join(["time", *(f"{_INDENT}{line}" for line in explanation.lines)]))
    return "\n\n".join(blocks)


def time_stages(timings: Timings) -> tuple[TimeStage, ...]:
    """Return the stages that were reached, and the remaining time as the stage `end`. The time of a skipped stage is
    added to the next one."""
    total = _units(timings.total)
    marks = (timings.decided, timings.dispatched, timings.accepted, timings.first_chunk)
    stages: list[TimeStage] = []
    start = 0
    for name, mark in zip(_STAGES, marks, strict=True):
        if mark is not None:
            end = min(max(start, _units(mark)), total)
            stages.append(TimeStage(name, start, end))
            start = end
    stages.append(TimeStage("end", start, max(start, total)))
    return tuple(stages)


def format_waterfall(receipt: Receipt) -> tuple[str, ...]:
    """Return a line for each stage and the total, then the times measured by the replica and by the verifier."""
    stages = time_stages(receipt.timings)
    total = stages[-1].end
    lines = [_format_stage(each.name, each.end - each.start) + f"  {_bar(each, total)}" for each in stages]
    lines.append(_format_stage("total", total))
    if receipt.usage is not None:
        own = receipt.usage.timings
        steps = {name: getattr(own, name) for name in ("queued", "prefill", "decode", "total")}
        known = [f"{name} {format_seconds(seconds)}" for name, seconds in steps.items() if seconds is not None]
        preempted = "" if own.preempted is None else f", of which preempted {format_seconds(own.preempted)}"
        lines.append(f"by the replica's clock: {', '.join(known)}{preempted}")
    if receipt.validation is not None:
        lines.append(f"by the verifier's clock: {format_seconds(receipt.validation.seconds)}")
    return tuple(lines)


def _format_stage(name: str, units: int) -> str:
    return f"{name:<{_LABEL}}{f'{units / 10:.1f} ms':>12}"


def _units(seconds: float) -> int:
    """Convert to tenths of a millisecond: never negative, and bounded even for infinity and NaN."""
    return round(min(seconds, _MAX_SECONDS) * _UNITS_PER_SECOND) if seconds > 0 else 0


def _bar(stage: TimeStage, total: int) -> str:
    """Draw the stage on the time axis, with at least one column if it took time."""
    if total == 0:
        return f"|{' ' * _BAR}|"
    first = stage.start * _BAR // total
    last = -(-stage.end * _BAR // total) if stage.end > stage.start else first
    return f"|{' ' * first}{'#' * (last - first)}{' ' * (_BAR - last)}|"
