"""`octet receipts`, `octet receipt`, and receipts as text."""

import argparse
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_flag, add_option, parse_duration, parse_positive
from octet.client.errors import DeadlineExceeded, OctetError
from octet.client.operator import Operator
from octet.client.receipts import Admission, DecisionInfo, Receipt, Usage
from octet.client.records import Between, Shadow
from octet.clock import wall_ms
from octet.telemetry.outcomes import CAPACITY_REASONS, OUTCOMES, reason_name, request_outcome, responsible_specialist
from octet.terminal import ONE_LINE, format_latency, format_moment, format_seconds, format_table

Rows = Iterator[tuple[str, str]]  # labels and texts
_LIST_HELP = """
Newest first. Marks: spilled (the second choice took the request, because the
primary had no capacity), stood in for (the answer came from another
specialist), failed over (a replica was lost or failed before another answered),
N asked (N replicas were tried, some without capacity), preempted, shadowed.
`octet why ID` explains one request.

  octet receipts --specialist stl --outcome refused
  octet receipts --before 10m --limit 100
  octet receipts --follow"""
CAPACITY_REASON_NAMES = frozenset(map(reason_name, CAPACITY_REASONS))
"""Reasons why one replica refuses a request although another may have capacity."""
_OPTIONS = {"most": "--limit", "before_unix_ms": "--before", "specialist": "--specialist", "tenant": "--tenant"}
_HEADING = ("time", "id", "specialist", "outcome", "ttft", "total", "tokens", "marks")
_POLL_S = 1.0
_MAX_REMEMBERED = 10_000
_MILLISECONDS = re.compile(r"[0-9]{1,18}")
_DIGEST, _BAR, _LABEL = 12, 24, 14


def add_receipts_command(commands: Commands) -> None:
    about = "list the latest requests, one line each"
    parser = cli.add_operator_command(commands, "receipts", about, cli.call_operator(_list_receipts), _LIST_HELP)
    option = partial(add_option, parser)
    option("--specialist", "NAME", "specialist that answered or should have", default="")
    parser.add_argument("--outcome", default="", choices=OUTCOMES, help="only requests with this outcome")
    option("--limit", "N", "at most N; default: %(default)s", parse_positive, default=50)
    about = "only requests before 10m (ago), 2026-01-31T12:00, or ms since 1970"
    option("--before", "TIME", about, parse_moment_ms, default=0)
    option("--tenant", "NAME", "only requests of this tenant; default: all", default="")
    add_flag(parser, "--follow", "continue with new requests until Ctrl-C")


def parse_moment_ms(text: str) -> int:
    """Parse a time such as `10m` (ago) or 2026-01-31T12:00; return milliseconds since 1970."""
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    with suppress(ValueError, OverflowError, OSError):
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    try:
        return wall_ms() - round(parse_duration(text) * 1000)
    except argparse.ArgumentTypeError:
        forms = "an age such as 10m, a date such as 2026-01-31T12:00, or a number of milliseconds since 1970"
        raise argparse.ArgumentTypeError(f"a time must be {forms}, got {text!r}") from None


def _list_receipts(operator: Operator, arguments: argparse.Namespace) -> cli.Result | None:
    if arguments.follow and arguments.before:
        raise ValueError("--before and --follow cannot be combined")
    if arguments.follow:
        _follow(operator, arguments)
        return None
    found = _fetch(operator, arguments)
    rows = [receipt_row(each) for each in found]
    text = format_table(_HEADING, rows, width=ONE_LINE) if found else "no matching receipts"
    return {"receipts": [each.to_dict() for each in found]}, text


def _fetch(operator: Operator, arguments: argparse.Namespace) -> list[Receipt]:
    """Fetch the receipts that match the options. Error messages name the option instead of the wire field."""
    options = {"outcome": arguments.outcome, "most": arguments.limit, "tenant": arguments.tenant}
    try:
        return list(operator.receipts(arguments.specialist, before_unix_ms=arguments.before, **options))
    except OctetError as error:
        option = _OPTIONS.get(error.field)
        if option is None:
            raise
        raise cli.reword_error(error, str(error).replace(error.field, option, 1), field=option) from None


def _follow(operator: Operator, arguments: argparse.Namespace) -> None:
    """Poll until --timeout or Ctrl-C. Print each new receipt once, oldest first; warn if some may be missing."""
    seen, is_first_poll = SeenReceipts(), True
    ends = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    with suppress(DeadlineExceeded):
        while ends is None or time.monotonic() < ends:
            found = _fetch(operator, arguments)
            new = seen.add_new(found)
            if len(new) == len(found) == arguments.limit and not is_first_poll:
                note = f"more than {len(new)} new receipts: some are not shown; use a larger --limit"
                cli.print_result(arguments, {"note": note}, note)
            for each in reversed(new):
                cli.print_result(arguments, each.to_dict(), format_table(receipt_row(each), (), width=ONE_LINE))
            is_first_poll = False
            time.sleep(_POLL_S)


class SeenReceipts:
    """Remembers which receipts have been printed, and forgets the oldest beyond a maximum."""

    def __init__(self, most: int = _MAX_REMEMBERED) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    def add_new(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Return the receipts that are new, and remember them."""
        keys = [(each.tenant, each.request_id, each.created_unix_ms) for each in receipts]
        new = [each for each, key in zip(receipts, keys, strict=True) if key not in self._known]
        for key in reversed(keys):
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > max(self._most, len(receipts)):
            self._known.popitem(last=False)
        return new


def receipt_row(receipt: Receipt) -> tuple[str, ...]:
    reason = "" if receipt.error is None or not receipt.error.reason else f": {receipt.error.reason}"
    return (
        format_moment(receipt.created_unix_ms, "%m-%d %H:%M:%S"),
        receipt.request_id,
        responsible_specialist(receipt.wire),
        request_outcome(receipt.wire) + reason,
        format_latency(receipt.timings.first_chunk),
        format_latency(receipt.timings.total),
        "" if receipt.usage is None else str(receipt.usage.completion_tokens),
        ", ".join(receipt_marks(receipt)),
    )


def receipt_marks(receipt: Receipt) -> list[str]:
    between, usage = receipt.between, receipt.usage
    marks = []
    if between is not None and between.spilled and receipt.admission is not None:
        marks.append("spilled")
    if between is not None and between.instead_of and receipt.specialist not in ("", between.instead_of):
        marks.append(f"stood in for {between.instead_of}")
    has_failed = any(each.reason and each.reason not in CAPACITY_REASON_NAMES for each in receipt.attempts)
    if receipt.error is None and has_failed:
        marks.append("failed over")
    elif len(receipt.attempts) > 1:
        marks.append(f"{len(receipt.attempts)} asked")
    if usage is not None and usage.times_preempted:
        marks.append(f"preempted {usage.times_preempted}x")
    if between is not None and between.shadow is not None and between.shadow.replica:
        marks.append(f"shadowed by {between.shadow.specialist}")
    return marks


def add_receipt_command(commands: Commands) -> None:
    about = "show which specialist answered a request, why, and how"
    more = "\nReceipts are kept for a limited time."
    option = partial(add_option, cli.add_command(commands, "receipt", about, _print_receipt, more))
    option("request_id", "ID", "id of the request")
    option("--tenant", "NAME", "tenant of the request, for an operator's key", default="")


def _print_receipt(arguments: argparse.Namespace) -> int:
    with cli.open_client(arguments) as router:
        receipt = router.receipt(arguments.request_id, tenant=arguments.tenant)
    return cli.print_result(arguments, receipt.to_dict(), format_receipt(receipt))


def format_decision(decision: DecisionInfo) -> str:
    confidence = "-" if decision.confidence is None else f"{decision.confidence:.2f}"
    return f"{decision.primary or 'no specialist'}  {confidence}  {decision.source or 'reject'}"


def explain_decision(receipt: Receipt) -> str:
    return f"{format_decision(receipt.decision)}\n{_format_rows(_explanation_rows(receipt))}"


def format_receipt(receipt: Receipt) -> str:
    """Describe which specialist answered, why, and how the request went."""
    return _format_rows(_receipt_rows(receipt))


def _format_rows(rows: Iterable[tuple[str, str]]) -> str:
    """Format the rows as lines. Rows without text are left out; successive rows with the same label show it once."""
    lines, last = [], ""
    for label, text in rows:
        if text:
            lines.append(f"{'' if label == last else label:<{_LABEL}} {text}".rstrip())
            last = label
    return "\n".join(lines)


def _explanation_rows(receipt: Receipt) -> Rows:
    decision = receipt.decision
    yield from _decision_rows(decision)
    yield "intent", decision.intent
    yield "task", _format_task(decision)
    yield "adapters", ", ".join(decision.adapters)
    yield from (("note", note) for note in decision.notes)
    yield from _dispatch_rows(receipt.between)
    names = {"request": "request", "configuration": "config", "classifier": "classifier"}
    digests = {name: getattr(decision, f"{field}_digest")[:_DIGEST] for name, field in names.items()}
    yield "digests", ", ".join(f"{name} {digest}" for name, digest in digests.items() if digest)
    yield "request", receipt.request_id


def _receipt_rows(receipt: Receipt) -> Rows:
    decision, validation, error = receipt.decision, receipt.validation, receipt.error
    yield "answered by", _format_answerer(receipt)
    yield from _decision_rows(decision)
    yield "task", _format_task(decision)
    yield from (("note", note) for note in decision.notes)
    yield from _dispatch_rows(receipt.between)
    for each in receipt.attempts:
        if each.reason or len(receipt.attempts) > 1:
            result = f"{each.reason}: {each.message}" if each.reason else "answered"
            yield "attempt", f"{each.specialist} on {each.replica} after {format_seconds(each.seconds)}: {result}"
    if receipt.admission is not None:
        yield "admission", _format_admission(receipt.admission)
    names = ("decided", "dispatched", "accepted", "first_chunk", "total")
    steps = {name.replace("_", " "): getattr(receipt.timings, name) for name in names}
    yield "timings", ", ".join(f"{name} {format_seconds(after)}" for name, after in steps.items() if after is not None)
    if receipt.session_source not in ("", "none"):
        yield "session", f"{receipt.session_id or 'the user'}, by {receipt.session_source}"
    if receipt.usage is not None:
        yield "tokens", format_tokens(receipt.usage)
    if validation is not None:
        result = f"{validation.outcome} by {validation.verifier} after {format_seconds(validation.seconds)}"
        yield "validation", result + (f": {validation.detail}" if validation.detail else "")
    if error is not None:
        yield "error", f"{error.reason}: {error.message}"
    yield "caller", f"{receipt.caller}, tenant {receipt.tenant}" if receipt.caller else ""
    yield "request", receipt.request_id + (f", trace {receipt.trace_id}" if receipt.trace_id else "")


def _decision_rows(decision: DecisionInfo) -> Rows:
    source = f"{decision.source} {decision.decided_by}".strip()
    if decision.decided_by and decision.decided_by == decision.classifier_digest:
        source = f"{decision.source or 'classifier'} {decision.decided_by[:_DIGEST]}"
    yield "why", decision.why
    yield "decided by", source
    width = max((len(each.specialist) for each in decision.distribution), default=0)
    for each in decision.distribution:
        bar = "#" * round(each.probability * _BAR)
        yield "distribution", f"{each.specialist:<{width}} {each.probability:>6.1%} {bar}"
    yield "second choice", decision.second_choice


def describe_cut(receipt: Receipt) -> str:
    """Say that the answer was cut at its length, by which limit, and what raises it; empty for any other answer."""
    usage, decision = receipt.usage, receipt.decision
    if usage is None or usage.finish_reason != "length":
        return ""
    most = decision.max_tokens if receipt.admission is None else receipt.admission.max_tokens
    if most >= decision.max_tokens:
        name = {"task": f"the task {decision.task}", "specialist": f"the specialist {decision.primary}"}
        source = name.get(decision.max_tokens_from, "the caller")
        where = "" if source == "the caller" else f", or max_tokens of {source} in the configuration,"
        limit, raises = f"max_tokens {most:,} from {source}", f"--max-tokens N{where} raises it"
    elif receipt.specialist == decision.primary:
        limit = f"the context leaves room for {most:,} tokens after {usage.prompt_tokens:,} of the prompt"
        raises = "a shorter prompt, a larger --context-size or context of the specialist gives more"
    else:
        limit = f"max_tokens or context of the specialist {receipt.specialist}, which answered instead: {most:,} tokens"
        raises = "--max-tokens N raises the first"
    return f"The answer was cut at its length: {limit}; {raises}."


def _format_task(decision: DecisionInfo) -> str:
    length = f"at most {decision.max_tokens} tokens" if decision.max_tokens else ""
    sampling = [f"{name} {value}" for name, value in decision.sampling.items()]
    return ", ".join(part for part in (decision.task, length, *sampling) if part)


def _format_answerer(receipt: Receipt) -> str:
    if not receipt.specialist:
        return "no specialist"
    replica = f" on {receipt.replica}" if receipt.replica else ""
    revision = f", revision {receipt.lane.revision[:_DIGEST]}" if receipt.lane.revision else ""
    adapters = "".join(f" + {digest[:_DIGEST]}" for digest in receipt.adapters)
    breaker = f", breaker {receipt.breaker}" if receipt.breaker else ""
    return f"{receipt.specialist}{replica}{revision}{adapters}{breaker}"


def _dispatch_rows(between: Between | None) -> Rows:
    """Yield rows about the dispatch. A closed breaker and the lane "serving" are normal, so they are not shown."""
    if between is None:
        return
    yield "dispatch", between.why
    yield "dispatch", "the primary had no capacity: the second choice answered" if between.spilled else ""
    yield "breaker", between.correctness if between.correctness not in ("", "closed") else ""
    yield "lane", between.lane if between.lane != "serving" else ""
    if between.shadow is not None:
        yield "shadow", _format_shadow(between.shadow)
    set_by = f", set by {between.knobs_by}" if between.knobs_by else ""
    yield "knobs", f"shadow threshold {between.shadow_threshold:g}, priority floor {between.priority_floor}{set_by}"


def _format_shadow(shadow: Shadow) -> str:
    to = " + ".join((shadow.specialist or "not chosen", *shadow.adapters))
    place = f" on {shadow.replica}" if shadow.replica else ""
    reason = f" ({shadow.reason})" if shadow.reason else ""
    return f"{to}{place}, {shadow.why}, {shadow.outcome or 'planned'}{reason}"


def _format_admission(admission: Admission) -> str:
    limits = f"at most {admission.max_tokens} tokens, seed {admission.seed}"
    ticket = ", with a ticket" if admission.reserved else ""
    text = f"{admission.queue_position} ahead in the queue, {limits}{ticket}"
    if admission.forecast is None:
        return text
    wait, total, slack = admission.forecast.wait, admission.forecast.total, admission.forecast.slack
    before = "" if slack is None else f", {format_seconds(slack)} before its deadline"
    return f"{text}; forecast: starts after {format_seconds(wait)}, ends after {format_seconds(total)}{before}"


def format_tokens(usage: Usage) -> str:
    miss = "" if usage.miss_reason in ("", "no_session") else f", the rest not: {usage.miss_reason}"
    speed = "" if usage.tokens_per_second is None else f", {usage.tokens_per_second:.1f} tok/s"
    preempted = "" if usage.timings.preempted is None else f" for {format_seconds(usage.timings.preempted)}"
    drafts = f" ({usage.accepted_tokens} of {usage.drafted_tokens} drafts right)" if usage.drafted_tokens else ""
    return (
        f"{usage.prompt_tokens} prompt ({usage.cache_hit_tokens} cached{miss}), "
        f"{usage.completion_tokens} generated{drafts}{speed}, {usage.finish_reason or 'unfinished'}, "
        f"preempted {usage.times_preempted} times{preempted}"
    )
