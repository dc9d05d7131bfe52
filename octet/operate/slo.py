"""`octet slo`: how well every specialist does of late, beside what is promised."""

import argparse
from collections.abc import Sequence

from octet.operate.asking import Commands, add_command, asks, show
from octet.operate.figures import duration, share
from octet.operate.table import table
from octet.sdk.operator import Operator
from octet.sdk.slo import Burn, Latency, Objective, Slo
from octet.text_io import check_text

_MORE = """
Every figure belongs to one specialist; there is none for all of them together.
ttft: from a request's arrival to the first piece of its answer; itl: between two
pieces; first token: from the replica's acceptance to the first piece. A burn of 1
uses up exactly what may fail; above it the promise will not be kept.

  octet slo
  octet slo stl --json"""
_HEADING = (
    "specialist",
    "ttft p50/p95/p99",
    "itl p50/p95/p99",
    "first token p95",
    "correct",
    "floor",
    "judged",
    "preempted once",
    "answered",
)
_PROMISES = ("specialist", "objective", "target", "current", "met", "burn")


def add_slo_command(commands: Commands) -> None:
    parser = add_command(commands, "slo", "how well every specialist does of late, beside what is promised", _MORE)
    parser.add_argument("specialist", nargs="?", default="", metavar="SPECIALIST", help="this one alone")
    asks(parser, "slo", _slo)


def _slo(operator: Operator, arguments: argparse.Namespace) -> int:
    check_text("SPECIALIST", arguments.specialist)
    slos = operator.slo(arguments.specialist)
    return show(arguments, {"slos": [each.to_dict() for each in slos]}, shown(slos))


def shown(slos: Sequence[Slo]) -> str:
    if not slos:
        return "there is no specialist"
    parts = [table(_HEADING, [_row(each) for each in slos]), *_promises(slos)]
    return "\n\n".join([*parts, "\n".join(dict.fromkeys(_over(each) for each in slos))])


def _promises(slos: Sequence[Slo]) -> list[str]:
    """Where there are several, those of which nothing has been seen yet are only named."""
    promised = [each for each in slos if each.objectives]
    if not promised:
        return ["nothing is promised: the configuration has no targets"]
    unseen = [each.specialist for each in promised if len(slos) > 1 and not _is_seen(each)]
    rows = [_promise(each, one) for each in promised if each.specialist not in unseen for one in each.objectives]
    named = [f"promised, and nothing seen of it yet: {', '.join(unseen)}"] if unseen else []
    return [*([table(_PROMISES, rows)] if rows else []), *named]


def _is_seen(slo: Slo) -> bool:
    return any(
        objective.current is not None or any(burn.samples for burn in objective.burns) for objective in slo.objectives
    )


def seconds(value: float | None) -> str:
    """Of a latency: three digits say enough."""
    if value is None:
        return "-"
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def figure(objective: Objective, value: float | None) -> str:
    """A dash where nothing was measured."""
    return seconds(value) if objective.is_latency else share(value) or "-"


def burn(found: Burn) -> str:
    rate = "-" if found.rate is None else f"{found.rate:.2g}"
    return f"{duration(found.window_seconds)}: {rate}"


def _row(slo: Slo) -> tuple[str, ...]:
    first = slo.admission_to_first_token
    return (
        slo.specialist,
        _quantiles(slo.ttft),
        _quantiles(slo.itl),
        seconds(None if first is None else first.p95),
        share(slo.pass_rate),
        share(slo.floor),
        str(slo.judged),
        share(slo.preempted_once),
        str(slo.answered),
    )


def _quantiles(latency: Latency | None) -> str:
    """In one unit."""
    if latency is None or latency.samples == 0:
        return "-"
    found = (latency.p50, latency.p95, latency.p99)
    scale, unit = (1000, "ms") if max(each or 0.0 for each in found) < 1 else (1, "s")
    return "/".join("-" if each is None else f"{each * scale:.3g}" for each in found) + f" {unit}"


def _promise(slo: Slo, objective: Objective) -> tuple[str, ...]:
    return (
        slo.specialist,
        objective.name,
        figure(objective, objective.target),
        figure(objective, objective.current),
        "not measured" if objective.current is None else "yes" if objective.met else "no",
        ", ".join(burn(each) for each in objective.burns),
    )


def _over(slo: Slo) -> str:
    routers = "1 router" if slo.routers == 1 else f"{slo.routers} routers"
    return (
        f"latencies over the last {duration(slo.window_seconds)}, of {routers}, within {slo.relative_error:.1%}; "
        f"correct: over the last {duration(slo.correctness_window_seconds)}"
    )
