"""`octet why`: the explanation of one request."""

import argparse
from dataclasses import asdict, dataclass
from functools import partial

import grpc

from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_option
from octet.cli.why_sections import explanation_sections, format_headline
from octet.client.errors import Forbidden, OctetError
from octet.client.operator import Operator, RequestExplanation
from octet.client.receipts import Receipt
from octet.client.stages import Stage, request_stages
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
_PART = "  "  # parts of a stage are indented
_LABEL = 26


@dataclass(frozen=True, slots=True)
class ExplanationSection:
    title: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    headline: str
    parts: tuple[ExplanationSection, ...]  # sections that are not empty
    lines: tuple[str, ...]  # how the time was spent; not to be folded


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
    stages = request_stages(found.receipt).to_dict()
    return {**found.to_dict(), "stages": stages, "told": asdict(explanation), "missing": missing}, text


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
        return RequestExplanation(receipt, None, "", "", "", ()), missing


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


def format_waterfall(receipt: Receipt) -> tuple[str, ...]:
    """Return a line for each stage, its parts and the total, then the times by the clocks of replica and verifier."""
    whole = request_stages(receipt)
    lines = []
    for stage in whole.parts:
        lines.append(_format_stage(stage.name, stage, whole.length))
        lines += [_format_stage(_PART + _part_name(each), each, whole.length) for each in stage.parts]
    lines.append(_format_time(whole.name, whole.length))
    if receipt.usage is not None:
        own = receipt.usage.timings
        steps = {name: getattr(own, name) for name in ("queued", "prefill", "decode", "total")}
        known = [f"{name} {format_seconds(seconds)}" for name, seconds in steps.items() if seconds is not None]
        preempted = "" if own.preempted is None else f", of which preempted {format_seconds(own.preempted)}"
        lines.append(f"by the replica's clock: {', '.join(known)}{preempted}")
    if receipt.validation is not None:
        lines.append(f"by the verifier's clock: {format_seconds(receipt.validation.seconds)}")
    return tuple(lines)


def _part_name(part: Stage) -> str:
    name = replace_unprintable(part.name)
    return f"{name}, failed" if part.has_failed else name


def _format_stage(name: str, stage: Stage, total: int) -> str:
    return f"{_format_time(name, stage.length)}  {_bar(stage, total)}"


def _format_time(name: str, units: int) -> str:
    label = name if len(name) < _LABEL else f"{name[: _LABEL - 2]}…"
    return f"{label:<{_LABEL}}{f'{units / 10:.1f} ms':>12}"


def _bar(stage: Stage, total: int) -> str:
    """Draw the stage on the time axis, with at least one column if it took time."""
    if total == 0:
        return f"|{' ' * _BAR}|"
    first = stage.start * _BAR // total
    last = -(-stage.end * _BAR // total) if stage.end > stage.start else first
    return f"|{' ' * first}{'#' * (last - first)}{' ' * (_BAR - last)}|"
