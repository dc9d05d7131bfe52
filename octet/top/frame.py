"""One screen: what is wrong now, a row for each specialist, details, and the keys. Pure."""

from collections.abc import Sequence

from octet.operate.figures import since
from octet.operate.table import fold
from octet.sdk.overview import Overview, SpecialistView, Trouble
from octet.top.columns import Rows, rows
from octet.top.details import details
from octet.top.figures import figures, rate
from octet.top.state import Known
from octet.top.text import Line, Span, Tone, fitted, line
from octet.top.view import View

KEYS = "q quit  s sort  up/down select  enter details  ? help"
_TONES: dict[str, Tone] = {"critical": "bad", "warning": "warn", "note": "plain"}
_HELP = (
    "q, Ctrl-C  leave",
    "s          sort: as configured, requests, queue, ttft, wrong answers",
    "up, down   select a specialist (k, j as well)",
    "enter      its details, and back (right, left as well)",
    "?          this, and back",
    "",
    "ttft: from a request's arrival to the first piece of its answer; itl: between two pieces;",
    "first: from the replica's acceptance to the first piece. Behind a / stands the target, or the floor.",
    "req, tok, refused, failed, spilled: a second, of the last minute; kv: used blocks of all.",
    "Every latency belongs to one specialist.",
)
_TROUBLES = 3
_LEAST_ROWS = 4


def frame(known: Known, view: View, columns: int, height: int) -> list[Line]:
    """Exactly as many lines as there are, none of them wider."""
    overview = known.overview
    above = [_title(known, view), *_stale(known), *_troubles(overview, _TROUBLES if height >= 20 else 1), ()]
    room = max(0, height - 1 - len(above))
    middle = _help(columns) if view.help else _specialists(known, view, columns, room)
    lines = [*above, *middle[:room]]
    blank: list[Line] = [()] * max(0, height - 1 - len(lines))
    whole = [*lines[: max(0, height - 1)], *blank, line(KEYS, "dim")]
    return [fitted(_dimmed(each) if known.is_stale else each, columns) for each in whole[-height:]]


def _specialists(known: Known, view: View, columns: int, room: int) -> list[Line]:
    """The rows, and below them the details of one."""
    ordered = view.ordered(known.overview.specialists)
    table = rows([figures(each) for each in ordered], view.selected, columns)
    below = [part for each in _below(known, view) for part in _folded(each, columns)]
    left = max(0, room - len(table.heading))
    least = min(left, len(table.heading) * len(table.rows), _LEAST_ROWS)
    for_rows = max(least, left - len(below) - 1) if below else left
    shown = [*table.heading, *_window(table, _index(view, ordered), for_rows)]
    return [*shown, (), *below] if below else shown


def plain_lines(known: Known, columns: int) -> list[Line]:
    """For no terminal: everything there is to see, once."""
    overview = known.overview
    table = rows([figures(each) for each in overview.specialists], "", columns)
    troubles = _troubles(overview, len(overview.troubles) + 1)
    return [_title(known, View()), *troubles, (), *table.heading, *(each for row in table.rows for each in row)]


def _title(known: Known, view: View) -> Line:
    overview = known.overview
    name = " ".join(each for each in ("octet", overview.version) if each)
    unrouted = overview.unrouted_per_second
    nobody = [f"{rate(unrouted)}/s belong to nobody"] if unrouted > 0 else []
    sorted_by = [] if view.sort == View().sort else [f"by {view.sort}"]
    words = "  ".join([known.as_of, *nobody, *sorted_by])
    return (Span.of(f"{overview.ensemble or 'ensemble'}  ", "bold"), Span.of(f"{name}  {words}"))


def _stale(known: Known) -> list[Line]:
    if not known.is_stale:
        return []
    why = known.trouble or "the router has said nothing since"
    return [line(f"THE PAST, {known.age:.0f} s old: {why}", "bad")]


def _troubles(overview: Overview, most: int) -> list[Line]:
    """What is wrong now, the worst first. Notes are nothing that is wrong."""
    if overview.store_trouble and not any(each.kind == "store_down" for each in overview.troubles):
        return [line(f"the store does not answer: {overview.store_trouble}", "bad")]
    well = line(overview.headline or "nothing is wrong now", "good")
    if not overview.troubles:
        return [well]
    if any(each.severity != "note" for each in overview.troubles):
        return _listed(overview, most)
    notes = len(overview.troubles)
    return [well, *_listed(overview, most - 1)] if most > 1 else [(*well, Span(f"  (and {notes} to note)", "dim"))]


def _listed(overview: Overview, most: int) -> list[Line]:
    shown = [_trouble(each, overview.at_unix_ms) for each in overview.troubles[:most]]
    more = len(overview.troubles) - len(shown)
    return [*shown[:-1], (*shown[-1], Span(f"  (and {more} more)" if more else "", "dim"))]


def _trouble(trouble: Trouble, now_ms: int) -> Line:
    ago = f"  for {since(trouble.since_unix_ms, now_ms)}" if trouble.since_unix_ms else ""
    book = f"  runbook: {trouble.runbook}" if trouble.runbook else ""
    head = f"{trouble.severity or 'trouble'}: "
    said = trouble.text or f"{trouble.kind.replace('_', ' ')} {trouble.subject}"
    return (Span.of(head + said, _TONES.get(trouble.severity, "warn")), Span.of(ago + book, "dim"))


def _below(known: Known, view: View) -> list[Line]:
    chosen = next((each for each in known.overview.specialists if each.name == view.selected), None)
    return details(chosen, known.overview) if view.details and chosen is not None else []


def _help(columns: int) -> list[Line]:
    return [part for text in _HELP for part in _folded(line(text), columns)]


def _folded(whole: Line, columns: int) -> list[Line]:
    """A line of one tone, on as many as it takes."""
    return [line(text, span.tone) for span in whole for text in fold(span.text, max(1, columns))]


def _index(view: View, ordered: Sequence[SpecialistView]) -> int:
    names = [each.name for each in ordered]
    return names.index(view.selected) if view.selected in names else 0


def _window(table: Rows, index: int, room: int) -> list[Line]:
    """As many rows as fit, the selected one among them; what is not shown is told."""
    step = len(table.heading)
    if len(table.rows) * step <= room:
        return [each for row in table.rows for each in row]
    fit = max(1, (room - 1) // step)
    first = min(max(0, index - fit // 2), len(table.rows) - fit)
    hidden = len(table.rows) - fit
    lines = [each for row in table.rows[first : first + fit] for each in row]
    return [*lines, line(f"  ... and {hidden} more", "dim")][: max(0, room)]


def _dimmed(spans: Line) -> Line:
    return tuple(Span(each.text, "dim" if each.tone in ("plain", "good") else each.tone) for each in spans)
