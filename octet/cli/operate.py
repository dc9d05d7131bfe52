"""Commands that show or change a running ensemble: breakers, knobs, lanes, adapters, replicas, shadows, audit, slo."""

import argparse
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc

from octet import terminal
from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_option, parse_duration, parse_float, parse_positive
from octet.client import records
from octet.client.errors import DeadlineExceeded, NotFound, OctetError
from octet.client.operator import DEFAULT_REASON, Operator
from octet.client.records import BreakerInfo, LaneInfo, Objective, ReplicaInfo, Slo
from octet.client.wire_record import WireRecord
from octet.terminal import format_age, format_duration, format_latency, format_percent, format_table, pluralize

RecordT = TypeVar("RecordT", bound=WireRecord)
Columns = Sequence[str | tuple[str, str | Callable[[Any], object]]]
"""Each column is the name of a field, or a heading with either the name of a field or a function of the record."""

_BREAKERS_HELP = """
floor: the lowest pass rate; learned: from the specialist's own answers.
closed: the specialist serves. shadow_only: its pass rate fell below the floor;
its fallback answers, and it gets only shadow traffic. recovering: its shadow
answers pass again, and must do so for a whole window before it serves. An operator
can hold a breaker open or closed until it is released."""
_KNOBS_HELP = """
INTENT.shadow_threshold: requests of lower confidence are copied to a shadow.
INTENT.priority_floor: requests of lower priority are refused, unless their second
choice has a lower floor and room.
INTENT/SPECIALIST instead of INTENT sets the knob for one specialist only."""
_LANES_HELP = """
A lane is a specialist's model with its adapters. One lane serves. Another may be
a candidate: it receives shadow requests only, until it is promoted."""
_LOAD_HELP = """
PATH is a directory below the replicas' adapter root, as the replicas see it.
A path that begins with ./, ../ or ~ is resolved on this machine. The root is
`adapter_root` of the configuration. The default is the folder of the configuration
file or, without a file, the folder in which `octet serve` was started."""
_REFRESH_HELP = """
The new weights get shadow requests only, until `octet adapters promote SPECIALIST`.
The old weights stay until the new ones are trusted. `octet adapters rollback
SPECIALIST` returns to them at any time. Architecture and tokenizer must be the same.
Only for specialists whose replicas `octet serve` runs, and that machine's paths."""
_ROOT_ADVICE = (
    "the adapter root is adapter_root in the configuration; its default is the folder of the configuration file "
    "or, without a file, the folder in which octet serve was started"
)
_SHADOW_HELP = """
Counts requests whose primary and shadow answers could both be verified: how often
each passed, and how often only one did. `octet router tune` derives thresholds."""
_SHADOW_LEGEND = "passed, alone: primary / shadow, among requests verified on both sides"
_SLO_HELP = """
Every figure belongs to one specialist; there is no figure for the whole ensemble.
ttft: from a request's arrival to the first chunk of its answer; itl: between two
tokens; first token: from the replica's acceptance to the first chunk. A burn rate
of 1 uses up the error budget exactly; above 1 the objective will be missed.

  octet slo
  octet slo stl --json"""
_PROCESS_NAME = re.compile(r"(.+)/([1-9][0-9]{0,8})")  # the names of `octet serve` processes, counted from one


def _format_lane(breaker: BreakerInfo) -> str:
    adapters = "".join(f"+{name}" for name in breaker.adapters)
    status = "" if breaker.lane_status in ("", "serving") else f" {breaker.lane_status}"
    return f"{breaker.lane}{adapters}{status}"


def _format_state(breaker: BreakerInfo) -> str:
    return f"held {breaker.hold} by {breaker.hold_by}: {breaker.hold_why}" if breaker.hold else breaker.state


def format_floor(each: BreakerInfo | Slo) -> str:
    return "" if each.floor is None else format_percent(each.floor) + (" learned" if each.floor_learned else "")


_SINCE = ("since", lambda each: format_age(each.since_unix_ms))
_FLOOR = ("floor", format_floor)
_PASSED = ("passed", lambda each: format_percent(each.pass_rate))
_BREAKER_COLUMNS: Columns = (
    "specialist",
    ("lane", _format_lane),
    ("state", _format_state),
    _PASSED,
    ("samples", lambda each: f"{each.samples}{f' of {each.min_samples}' if each.samples < each.min_samples else ''}"),
    *(_FLOOR, ("judged by", "verifier"), _SINCE, "fallback", "outlook"),
)
_KNOB_COLUMNS: Columns = (
    ("knob", "name"),
    ("value", lambda each: f"{each.value:g}"),
    ("configured", lambda each: f"{each.configured:g}"),
    *(("set by", "set_by"), _SINCE, "why"),
)
_LANE_COLUMNS: Columns = (
    *("specialist", ("lane", "number")),
    ("adapter", lambda each: each.adapter or Path(each.model).name),
    *("status", _SINCE, _PASSED, "samples"),
    ("on", lambda each: f"{each.resident}/{each.replicas}"),
    *("by", "outlook"),
)
_REPLICA_COLUMNS: Columns = (
    *(("replica", "name"), "specialist"),
    ("status", lambda each: each.status + (", refusing" if each.refusing else "")),
    *(("health", "health_breaker"), "waiting", "running", "shadows"),
    ("wait", lambda each: "" if each.usual_wait is None else f"{each.usual_wait:.2f} s"),
    ("error p90", lambda each: format_percent(each.estimate_error_p90)),
    ("restarts", lambda each: format_restarts(each) or "0"),
    "address",
)
_SHADOW_COLUMNS: Columns = (
    *("intent", "primary", "shadow", "why", "compared"),
    ("agreed", lambda each: _ratio(each.agreed, each.compared)),
    ("similar", lambda each: f"{each.mean_similarity:.2f}"),
    "verified",
    ("passed", lambda each: " / ".join(_ratio(n, each.verified) for n in (each.primary_passed, each.shadow_passed))),
    ("alone", lambda each: f"{each.only_primary_passed} / {each.only_shadow_passed}"),
)
_AGO = ("ago", lambda each: format_age(each.at_unix_ms))
_AUDIT_COLUMNS: Columns = (("no.", "number"), _AGO, "who", "what", "subject", "before", "after", "why")
_SLO_COLUMNS: Columns = (
    "specialist",
    ("ttft p50/p95/p99", lambda each: _format_quantiles(each.ttft)),
    ("itl p50/p95/p99", lambda each: _format_quantiles(each.itl)),
    ("first token p95", lambda each: format_latency(getattr(each.admission_to_first_token, "p95", None))),
    ("correct", lambda each: format_percent(each.pass_rate)),
    *(_FLOOR, "judged"),
    ("preempted once", lambda each: format_percent(each.preempted_once)),
    "answered",
)


def format_records(found: Iterable[WireRecord], columns: Columns) -> str:
    """Format a table with a row for each record."""

    def cell(record: WireRecord, column: str | Callable[[Any], object]) -> str:
        return str(getattr(record, column) if isinstance(column, str) else column(record))

    pairs = [(each, each) if isinstance(each, str) else each for each in columns]
    return format_table([name for name, _ in pairs], [[cell(each, column) for _, column in pairs] for each in found])


def _list(name: str, columns: Columns, fetch: Callable[[Operator, Any], Sequence[WireRecord]]) -> cli.Run:
    def call(operator: Operator, given: argparse.Namespace) -> cli.Result:
        found = fetch(operator, given)
        return {name: [each.to_dict() for each in found]}, format_records(found, columns)

    return cli.call_operator(call)


def _show(describe: Callable[[RecordT], str], fetch: Callable[[Operator, Any], RecordT]) -> cli.Run:
    def call(operator: Operator, given: argparse.Namespace) -> cli.Result:
        record = fetch(operator, given)
        return record.to_dict(), describe(record)

    return cli.call_operator(call)


def _change(describe: Callable[[RecordT], str], make: Callable[..., RecordT], *names: str) -> cli.Run:
    """Return a command that calls `make` with the command-line arguments `names`, and prints the changed record."""
    return _show(
        describe, lambda operator, given: make(operator, *(getattr(given, name) for name in names), why=given.reason)
    )


def _add_change_options(parser: argparse.ArgumentParser, *, reason_needed: bool = False) -> None:
    default: Any = {"required": True} if reason_needed else {"default": DEFAULT_REASON}
    about = "recorded in the audit log" + ("" if reason_needed else "; default: %(default)s")
    add_option(parser, "--reason", "TEXT", about, **default)
    add_option(parser, "--as", "NAME", "author of the change; default: your user and machine", dest="who", default=None)


def add_breaker_commands(commands: Commands) -> None:
    about = "show pass rate and breaker state of every specialist"
    show = _show(format_breakers, lambda operator, _: operator.breakers())
    cli.add_operator_command(commands, "breakers", about, show, _BREAKERS_HELP)
    single = cli.add_operator_command(
        commands, "breaker", "hold or release a specialist's breaker, or learn its floor again"
    )
    verbs = single.add_subparsers(metavar="hold|release|relearn", required=True)
    about = "keep a specialist from serving, or keep it serving regardless of its answers"
    change = _change(_describe_breaker, Operator.hold_breaker, "specialist", "hold")
    hold = cli.add_operator_verb(verbs, "hold", about, change)
    position = hold.add_mutually_exclusive_group(required=True)
    position.add_argument("--open", dest="hold", action="store_const", const="open", help="send only shadow traffic")
    position.add_argument("--closed", dest="hold", action="store_const", const="closed", help="let it serve")
    _add_change_options(hold, reason_needed=True)
    about = "end the hold; the breaker decides again"
    change = _change(_describe_breaker, Operator.release_breaker, "specialist")
    release = cli.add_operator_verb(verbs, "release", about, change)
    _add_change_options(release)
    about = "forget the learned floors and learn new ones; until then the pass rate is only recorded"
    change = _change(_describe_breaker, Operator.relearn_floor, "specialist")
    relearn = cli.add_operator_verb(verbs, "relearn", about, change)
    _add_change_options(relearn)
    for verb in (hold, release, relearn):
        verb.add_argument("specialist", metavar="SPECIALIST")


def format_breakers(found: records.BreakerList) -> str:
    parts = [format_records(found.breakers, _BREAKER_COLUMNS)]
    windows = sorted({format_duration(each.window_seconds) for each in found.breakers})
    if windows:
        parts.append(f"passed: over the last {' or '.join(windows)}")
    if found.store_trouble:
        parts.append(f"The store is unavailable, so changes are impossible: {found.store_trouble}")
    return "\n\n".join(parts)


def _describe_breaker(breaker: BreakerInfo) -> str:
    return f"{breaker.specialist} is {_format_state(breaker)}" + (f": {breaker.outlook}" if breaker.outlook else "")


def add_knob_commands(commands: Commands) -> None:
    about = "show or set shadow thresholds and priority floors"
    show = _list("knobs", _KNOB_COLUMNS, lambda operator, _: operator.knobs())
    parser = cli.add_operator_command(commands, "knobs", about, show, _KNOBS_HELP)
    verbs = parser.add_subparsers(metavar="set|release")
    change = _show(_describe_knob, lambda operator, given: operator.set_knob(*given.setting, why=given.reason))
    setting = cli.add_operator_verb(verbs, "set", "set a knob to a value until it is released", change, _KNOBS_HELP)
    add_option(setting, "setting", "NAME=VALUE", "such as review.priority_floor=5", parse_setting)
    about = "let configuration and escalation set a knob again"
    release = cli.add_operator_verb(verbs, "release", about, _change(_describe_knob, Operator.release_knob, "name"))
    add_option(release, "name", "NAME", "such as review.priority_floor")
    for verb in (setting, release):
        _add_change_options(verb)


def _describe_knob(knob: records.KnobInfo) -> str:
    return f"{knob.name} is {knob.value:g}, set by {knob.set_by} (configured: {knob.configured:g})"


def parse_setting(text: str) -> tuple[str, float]:
    name, equals, number = text.partition("=")
    value = parse_float(number)
    if not name.strip() or not equals or not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"a knob must be NAME=NUMBER (such as review.priority_floor=5), got {text!r}")
    return name.strip(), value


def add_lane_commands(commands: Commands) -> None:
    about = "show serving, candidate and former lanes"
    show = _list("lanes", _LANE_COLUMNS, lambda operator, given: operator.lanes(given.specialist))
    lanes = cli.add_operator_command(commands, "lanes", about, show, _LANES_HELP)
    add_option(lanes, "specialist", "SPECIALIST", "default: all", nargs="?", default="")
    about = "load an adapter as a candidate, promote it, or roll back"
    adapters = cli.add_operator_command(commands, "adapters", about, show, _LANES_HELP)
    adapters.set_defaults(specialist="")
    verbs = adapters.add_subparsers(metavar="load|promote|rollback")
    about = "load an adapter on every replica, as a candidate"
    load = cli.add_operator_verb(verbs, "load", about, _show(_describe_lane, _load_adapter), _LOAD_HELP)
    about = "let the candidate serve; running requests finish on their lane"
    change = _change(_describe_lane, Operator.promote, "specialist", "name")
    promote = cli.add_operator_verb(verbs, "promote", about, change)
    about = "drop the candidate, if any; otherwise return to the previous lane"
    change = _change(_describe_lane, Operator.roll_back, "specialist")
    rollback = cli.add_operator_verb(verbs, "rollback", about, change)
    for verb in (load, promote, rollback):
        verb.add_argument("specialist", metavar="SPECIALIST")
        _add_change_options(verb)
    add_option(load, "path", "PATH", parse=resolve_adapter_path)
    add_option(load, "--name", "NAME", "name of the lane; default: the directory's name", default="")
    add_option(promote, "name", "NAME", "name of the candidate; default: any", nargs="?", default="")


def add_refresh_command(commands: Commands) -> None:
    about = "start other weights of a specialist beside the running ones, as a candidate"
    parser = cli.add_operator_command(commands, "refresh", about, _show(_describe_lane, _refresh), _REFRESH_HELP)
    add_option(parser, "specialist", "SPECIALIST")
    about = "a Hugging Face directory, a .gguf file, or hf:ORG/NAME of the hub"
    add_option(parser, "--model", "PATH", about, _resolve_model_path, required=True)
    add_option(parser, "--digest", "SHA256", "revision that the weights must have; default: any", default="")
    _add_change_options(parser)


def _resolve_model_path(text: str) -> str:
    return text if text.startswith("hf:") else str(Path(text).expanduser().absolute())


def _refresh(operator: Operator, given: argparse.Namespace) -> LaneInfo:
    return operator.refresh(given.specialist, given.model, digest=given.digest, why=given.reason)


def resolve_adapter_path(text: str) -> str:
    """Return the path, made absolute if it begins with ./, ../ or ~, because replicas run in another folder."""
    is_local = text.startswith(("./", "../", "~")) or text in (".", "..")
    return str(Path(text).expanduser().resolve()) if is_local else text


def _load_adapter(operator: Operator, given: argparse.Namespace) -> LaneInfo:
    try:
        return operator.load_adapter(given.specialist, given.path, name=given.name, why=given.reason)
    except OctetError as error:
        is_about_root = "adapter root" in str(error)
        raise (cli.reword_error(error, f"{error}; {_ROOT_ADVICE}") if is_about_root else error) from None


def _describe_lane(lane: LaneInfo) -> str:
    weights = f"the bare model of {lane.model}" if lane.model else "the bare model"
    text = f"lane {lane.number} of {lane.specialist}, {lane.adapter or weights}, is {lane.status}"
    return text + (f": {lane.outlook}" if lane.outlook else "")


def add_replica_commands(commands: Commands) -> None:
    show = _list("replicas", _REPLICA_COLUMNS, lambda operator, _: operator.replicas())
    cli.add_operator_command(commands, "replicas", "show every replica, its load and its restarts", show)
    changes = (
        ("drain", "stop sending new requests to a replica; it finishes running ones", Operator.drain),
        ("undrain", "send requests to a drained replica again", Operator.undrain),
    )
    for name, about, change in changes:
        parser = cli.add_operator_command(commands, name, about, _show(_describe_replica, partial(_mark, change)))
        add_option(parser, "replica", "REPLICA", "name of the replica in `octet replicas`")
        _add_change_options(parser)


def format_restarts(replica: ReplicaInfo, now_ms: int | None = None) -> str:
    """Format the number of restarts, and when and why the last one was; empty without a restart."""
    if not replica.restarts:
        return ""
    age = format_age(replica.last_restart_unix_ms, now_ms)
    return f"{replica.restarts}, last {age} ago: {replica.last_restart_reason}"


def _mark(change: Callable[..., ReplicaInfo], operator: Operator, given: argparse.Namespace) -> ReplicaInfo:
    return change(operator, resolve_replica_name(operator, given.replica), why=given.reason)


def _describe_replica(replica: ReplicaInfo) -> str:
    load = f"{replica.running} running, {replica.waiting} waiting"
    return f"{replica.name} is {replica.status.replace('_', ' ')}: {load}"


def resolve_replica_name(operator: Operator, name: str) -> str:
    """Return `name`. If it names a process of `octet serve`, raise NotFound and suggest the name of its replica."""
    process = _PROCESS_NAME.fullmatch(name)
    names = [] if process is None else [each.name for each in operator.replicas()]
    if process is None or name in names:
        return name
    meant = f"{process[1]}-{int(process[2]) - 1}"
    hint = f"process {name} of octet serve is replica {meant}" if meant in names else "to see them, run: octet replicas"
    message = f"there is no replica {name!r}: {hint}"
    raise NotFound(message, code=grpc.StatusCode.NOT_FOUND, reason="unknown_name", field="replica")


def add_shadow_command(commands: Commands) -> None:
    parser = cli.add_operator_command(commands, "shadow", "compare primary and shadow answers")
    verbs = parser.add_subparsers(metavar="report", required=True)
    about = "compare pass rates of primary and shadow answers by intent"
    show = _show(format_shadow_report, lambda operator, given: operator.shadow_report(given.last))
    report = cli.add_operator_verb(verbs, "report", about, show, _SHADOW_HELP)
    add_option(report, "--last", "TIME", "such as 24h; default: all", parse_duration, default=0.0)


def format_shadow_report(report: records.ShadowReport) -> str:
    names = ("ordered", "sent", "answered", "shed", "failed", "compared")
    totals = ["since this router started: " + ", ".join(f"{getattr(report.counts, name)} {name}" for name in names)]
    totals += [f"  {each.outcome}, {each.reason}: {each.count}" for each in report.counts.reasons]
    if not report.rows:
        return "\n".join(["nothing compared yet", "", *totals])
    return "\n".join([format_records(report.rows, _SHADOW_COLUMNS), "", _SHADOW_LEGEND, *totals])


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def add_audit_commands(commands: Commands) -> None:
    about = "list changes: who, what, when and why, newest first"
    audit = cli.add_operator_command(commands, "audit", about, cli.call_operator(_list_audit))
    about = "full name of a specialist, knob or replica, or `store`"
    add_option(audit, "subject", "SUBJECT", about, nargs="?", default="")
    about = "at most N; default: %(default)s"
    audit.add_argument("--limit", "--most", type=parse_positive, default=30, metavar="N", help=about)
    about = "print changes and restarts as they happen, until Ctrl-C or --timeout"
    cli.add_operator_command(commands, "events", about, cli.call_operator(_print_events))


def _list_audit(operator: Operator, arguments: argparse.Namespace) -> cli.Result:
    entries = list(operator.audit(arguments.subject, most=arguments.limit))
    subject = f" about {arguments.subject!r}" if arguments.subject else ""
    text = format_records(entries, _AUDIT_COLUMNS) if entries else f"no audit entries{subject}"
    return {"audit": [each.to_dict() for each in entries]}, text


def _print_events(operator: Operator, arguments: argparse.Namespace) -> None:
    with suppress(DeadlineExceeded):  # --timeout has passed
        for event in operator.events():
            cli.print_result(arguments, event.to_dict(), format_event(event))


def format_event(event: records.OperatorEvent) -> str:
    at = terminal.format_moment(event.at_unix_ms, "%H:%M:%S")
    if event.audit is not None:
        entry = event.audit
        change = f": {entry.before or '-'} -> {entry.after or '-'}" if entry.before or entry.after else ""
        return f"{at} {entry.who}: {entry.what} {entry.subject}{change} ({entry.why})"
    if event.dropped is not None:
        return f"{at} {event.dropped} events were dropped: this client reads too slowly"
    if event.store_trouble:
        return f"{at} the store is unavailable, so changes are impossible: {event.store_trouble}"
    return f"{at} the store is available"


def add_slo_command(commands: Commands) -> None:
    about = "show recent latencies and correctness against objectives"
    parser = cli.add_operator_command(commands, "slo", about, cli.call_operator(_list_slos), _SLO_HELP)
    add_option(parser, "specialist", "SPECIALIST", "default: all", nargs="?", default="")


def _list_slos(operator: Operator, arguments: argparse.Namespace) -> cli.Result:
    slos = operator.slo(arguments.specialist)
    text = format_slos(slos) if slos else "there are no specialists"
    return {"slos": [each.to_dict() for each in slos]}, text


def format_slos(slos: Sequence[Slo]) -> str:
    windows = dict.fromkeys(
        f"latencies over the last {format_duration(each.window_seconds)}, of {pluralize(each.routers, 'router')}, "
        f"within {each.relative_error:.1%}; correct: over the last {format_duration(each.correctness_window_seconds)}"
        for each in slos
    )
    return "\n\n".join([format_records(slos, _SLO_COLUMNS), *_format_objectives(slos), "\n".join(windows)])


def _format_objectives(slos: Sequence[Slo]) -> list[str]:
    """Format a table of objectives. With several specialists, those without samples are listed below the table."""
    with_targets = [each for each in slos if each.objectives]
    if not with_targets:
        return ["no objectives: the configuration has no targets"]
    unmeasured = [each.specialist for each in with_targets if len(slos) > 1 and not _has_samples(each)]
    measured = [each for each in with_targets if each.specialist not in unmeasured]
    rows = [_objective_row(each, objective) for each in measured for objective in each.objectives]
    tables = [format_table(("specialist", "objective", "target", "current", "met", "burn"), rows)] if rows else []
    missed = [f"{row[0]} {row[1]}" for row in rows if row[4] == "no"]
    tables += [f"missed: {', '.join(missed)}"] if missed else []
    return [*tables, *([f"objectives without samples so far: {', '.join(unmeasured)}"] if unmeasured else [])]


def _has_samples(slo: Slo) -> bool:
    return any(format_met(each) != "not measured" for each in slo.objectives)


def format_objective_value(objective: Objective, value: float | None) -> str:
    return format_latency(value) if objective.name != "correctness" else format_percent(value) or "-"


def format_met(objective: Objective) -> str:
    """An objective can be missed without a value: requests that got no answer have no latency."""
    is_measured = objective.current is not None or any(burn.samples for burn in objective.burns)
    return "not measured" if not is_measured else "yes" if objective.met else "no"


def format_burn(burn: records.Burn) -> str:
    rate = "-" if burn.rate is None else f"{burn.rate:.2g}"
    return f"{format_duration(burn.window_seconds)}: {rate}"


def _format_quantiles(latency: records.Latency | None) -> str:
    """Format all three quantiles in the same unit."""
    if latency is None or latency.samples == 0:
        return "-"
    quantiles = (latency.p50, latency.p95, latency.p99)
    scale, unit = (1000, "ms") if max(each or 0.0 for each in quantiles) < 1 else (1, "s")
    return "/".join("-" if each is None else f"{each * scale:.3g}" for each in quantiles) + f" {unit}"


def _objective_row(slo: Slo, objective: Objective) -> tuple[str, ...]:
    target, current = (format_objective_value(objective, value) for value in (objective.target, objective.current))
    return (
        slo.specialist,
        objective.name,
        target + (" learned" if objective.learned else ""),
        current,
        format_met(objective),
        ", ".join(map(format_burn, objective.burns)),
    )
