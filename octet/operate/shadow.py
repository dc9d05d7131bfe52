"""`octet shadow report`: what second opinions have shown."""

import argparse

from octet.operate.asking import Commands, add_command, add_verb, asks, show
from octet.operate.figures import last
from octet.operate.table import table
from octet.sdk.operating import ShadowReport, ShadowRow
from octet.sdk.operator import Operator

_MORE = """
Of the answers that could be verified on both sides: how often each passed, and
how often only one of them did. `octet router tune` makes thresholds of it."""
_HEADING = ("intent", "primary", "shadow", "why", "compared", "agreed", "similar", "verified", "passed", "alone")
_LEGEND = "passed, alone: the primary's / the shadow's, of those that could be verified on both sides"
_SHED = "shed: not sent for want of budget or of a free replica, turned away by the replica, or too late to be compared"


def add_shadow_command(commands: Commands) -> None:
    parser = add_command(commands, "shadow", "what second opinions have shown")
    verbs = parser.add_subparsers(metavar="report", required=True)
    report = add_verb(verbs, "report", "what second opinions have shown, by intent, primary and shadow", _MORE)
    report.add_argument("--last", type=last, default=0.0, metavar="TIME", help="such as 24h; default: all that is kept")
    asks(report, "shadow report", _report)


def _report(operator: Operator, arguments: argparse.Namespace) -> int:
    report = operator.shadow_report(arguments.last)
    return show(arguments, report.to_dict(), shown(report))


def shown(report: ShadowReport) -> str:
    counts = report.counts
    said = (
        f"since this router began: {counts.ordered} ordered, {counts.sent} sent, {counts.answered} answered, "
        f"{counts.shed} shed, {counts.failed} failed, {counts.compared} compared"
    )
    if not report.rows:
        return f"nothing has been compared\n\n{said}\n{_SHED}"
    return "\n".join([table(_HEADING, [_row(each) for each in report.rows]), "", _LEGEND, said, _SHED])


def _row(row: ShadowRow) -> tuple[str, ...]:
    return (
        row.intent,
        row.primary,
        row.shadow,
        row.why,
        str(row.compared),
        _of(row.agreed, row.compared),
        f"{row.mean_similarity:.2f}",
        str(row.verified),
        f"{_of(row.primary_passed, row.verified)} / {_of(row.shadow_passed, row.verified)}",
        f"{row.only_primary_passed} / {row.only_shadow_passed}",
    )


def _of(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
