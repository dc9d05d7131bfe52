"""One screen of `octet top`: findings, a row for each specialist, details, help. Pure functions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from rich.text import Text

from octet.cli.operate import format_burn, format_floor, format_met, format_objective_value, format_restarts
from octet.client import records
from octet.client.records import LaneInfo, Objective, Overview, ReplicaView, SpecialistView
from octet.terminal import fold_text, format_age, format_latency, format_moment, format_percent, replace_unprintable

GOOD, WARNING, BAD, DIM, BOLD, PLAIN = "green", "yellow", "bold red", "dim", "bold", ""
FRESH_SECONDS = 8.0  # a router sends an overview at least every five seconds, so an older one is stale
KEY_HELP = "q quit  s sort  up/down select  enter details  ? help"
_HELP = (
    "q, Ctrl-C  quit",
    "s          sort: as configured, requests, queue, ttft, wrong answers",
    "up, down   select a specialist (also k, j)",
    "enter      show or hide its details (also right, left)",
    "?          show or hide this help",
    "",
    "ttft: from a request's arrival to the first chunk of its answer; itl: between two tokens;",
    "first: from the replica's acceptance to the first chunk. After the / is the target, or the floor (*: learned).",
    "req, tok, refused, failed, spilled: per second, over the last minute; kv: share of used blocks.",
    "Every latency belongs to one specialist.",
)
_SEVERITY_STYLES = {"critical": BAD, "warning": WARNING, "note": PLAIN}
_BREAKER_STYLES = {"closed": PLAIN, "shadow_only": BAD}
_MAX_FINDINGS = 3
_MAX_RECEIPTS = 5
_MIN_ROWS = 4
_FULL = 0.9  # at this share of used KV blocks or above, the figure has a colour
_TRAFFIC = ("specialist", "req/s", "refused", "failed", "spilled", "tok/s", "queue", "running", "kv")
_QUALITY = ("ttft p95", "itl p95", "first p95", "correct", "breaker", "lane")
_LEFT_ALIGNED = ("specialist", "breaker", "lane")
_GAP = "  "
_MARKER_WIDTH = 2
_MIN_NAME, _MAX_NAME = 8, 24


@dataclass(frozen=True, slots=True)
class ReceivedOverview:
    overview: Overview
    age: float  # seconds since the overview was received
    problem: str = ""  # why nothing newer arrives; empty while the stream is open

    @property
    def is_stale(self) -> bool:
        return bool(self.problem) or self.age > FRESH_SECONDS

    @property
    def as_of(self) -> str:
        """Return the time at which the router made the overview, and its age if it is stale, as text."""
        at = format_moment(self.overview.at_unix_ms, "%H:%M:%S")
        return f"as of {at}, {self.age:.0f} s old" if self.is_stale else f"as of {at}"


def styled(text: str, style: str = PLAIN) -> Text:
    """Style untrusted text: control characters become spaces, markup is not interpreted."""
    return Text(replace_unprintable(text), style)


def format_rate(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.05 else "<0.1"


def queue_load(view: SpecialistView) -> tuple[int, int]:
    """Return the numbers of waiting and of running requests on all replicas."""
    loads = [found for each in view.replicas if (found := each.load or each.info) is not None]
    return sum(each.waiting for each in loads), sum(each.running for each in loads)


def _ttft(view: SpecialistView) -> float:
    found = None if view.slo is None or view.slo.ttft is None else view.slo.ttft.p95
    return -1.0 if found is None else found


SORT_KEYS: dict[str, Callable[[SpecialistView], float]] = {  # largest first; the sort is stable
    "as configured": lambda view: 0.0,
    "requests": lambda view: 0.0 if view.rates is None else view.rates.requests,
    "queue": lambda view: queue_load(view)[0],
    "ttft": _ttft,
    "wrong answers": lambda view: -inf if view.slo is None or view.slo.pass_rate is None else -view.slo.pass_rate,
}
_SORT_NAMES = tuple(SORT_KEYS)


@dataclass(frozen=True, slots=True)
class TopView:
    """The state of the screen: order, selection, details and help. Only keys change it."""

    sort: str = _SORT_NAMES[0]
    selected: str = ""  # name of a specialist; empty for none
    details: bool = False
    help: bool = False

    def sort_views(self, views: Sequence[SpecialistView]) -> list[SpecialistView]:
        return sorted(views, key=SORT_KEYS[self.sort], reverse=True) if self.sort != _SORT_NAMES[0] else list(views)

    def press(self, key: str, views: Sequence[SpecialistView]) -> "TopView":
        """Return the state after a key; unknown keys change nothing."""
        names = [each.name for each in self.sort_views(views)]
        if key == "?":
            return replace(self, help=not self.help)
        if key == "escape":
            return replace(self, help=False, details=False)
        if key == "s":
            return replace(self, sort=_SORT_NAMES[(_SORT_NAMES.index(self.sort) + 1) % len(_SORT_NAMES)])
        if key in ("up", "down", "k", "j"):
            return self._move(-1 if key in ("up", "k") else 1, names)
        if key in ("enter", "right", "left") and names:
            selected = self.selected if self.selected in names else names[0]
            return replace(self, selected=selected, details={"right": True, "left": False}.get(key, not self.details))
        return self

    def _move(self, by: int, names: Sequence[str]) -> "TopView":
        if not names:
            return replace(self, selected="")
        if self.selected not in names:
            return replace(self, selected=names[0 if by > 0 else -1])
        return replace(self, selected=names[min(max(0, names.index(self.selected) + by), len(names) - 1)])


def render_frame(received: ReceivedOverview, view: TopView, columns: int, height: int) -> list[Text]:
    """Return exactly `height` lines, none wider than `columns`."""
    above = [_title(received, view)]
    if received.is_stale:
        why = received.problem or "the router has sent nothing since"
        above.append(styled(f"STALE, {received.age:.0f} s old: {why}", BAD))
    above += [*_findings(received.overview, _MAX_FINDINGS if height >= 20 else 1), Text()]
    room = max(0, height - 1 - len(above))
    middle = _fold([styled(text) for text in _HELP], columns) if view.help else _table(received, view, columns, room)
    lines = [*above, *middle[:room]]
    blank = [Text()] * max(0, height - 1 - len(lines))
    whole = [*lines[: max(0, height - 1)], *blank, styled(KEY_HELP, DIM)]
    return [_fit(_dim(each) if received.is_stale else each, columns) for each in whole[-height:]]


def render_plain(received: ReceivedOverview, columns: int) -> list[Text]:
    """Render the whole overview once, for a pipe or a file."""
    overview = received.overview
    heading, rows = _build_rows(overview.specialists, "", columns)
    findings = _findings(overview, len(overview.troubles) + 1)
    return [_title(received, TopView()), *findings, Text(), *heading, *(line for row in rows for line in row)]


def plain_text(lines: Sequence[Text]) -> str:
    return "\n".join(each.plain.rstrip() for each in lines)


def _table(received: ReceivedOverview, view: TopView, columns: int, room: int) -> list[Text]:
    """Render the rows, and below them the details of the selected specialist."""
    views = view.sort_views(received.overview.specialists)
    heading, rows = _build_rows(views, view.selected, columns)
    index = next((number for number, each in enumerate(views) if each.name == view.selected), None)
    details: list[Text] = []
    if view.details and index is not None:
        details = _fold(list(_detail_lines(views[index], received.overview)), columns)
    left = max(0, room - len(heading))
    least = min(left, len(heading) * len(rows), _MIN_ROWS)
    for_rows = max(least, left - len(details) - 1) if details else left
    shown = [*heading, *_scroll(rows, index or 0, for_rows)]
    return [*shown, Text(), *details] if details else shown


def _title(received: ReceivedOverview, view: TopView) -> Text:
    overview = received.overview
    name = " ".join(each for each in ("octet", overview.version) if each)
    unrouted = [f"{format_rate(overview.unrouted_per_second)}/s rejected"] if overview.unrouted_per_second > 0 else []
    sorted_by = [] if view.sort == _SORT_NAMES[0] else [f"by {view.sort}"]
    rest = "  ".join([name, received.as_of, *unrouted, *sorted_by])
    return Text.assemble(styled(f"{overview.ensemble or 'ensemble'}  ", BOLD), styled(rest))


def _findings(overview: Overview, most: int) -> list[Text]:
    """Return the findings in at most `most` lines, below the headline if no finding is a problem."""
    if overview.store_trouble and not any(each.kind == "store_down" for each in overview.troubles):
        return [styled(f"the store is unavailable: {overview.store_trouble}", BAD)]
    headline = styled(overview.headline or "no problems", GOOD if overview.headline.startswith("All well") else WARNING)
    if not overview.troubles:
        return [headline]
    only_notes = all(each.severity == "note" for each in overview.troubles)
    if only_notes and most == 1:
        return [Text.assemble(headline, styled(f"  (and {len(overview.troubles)} notes)", DIM))]
    shown = overview.troubles[: most - only_notes]
    lines = [_finding_line(each, overview.at_unix_ms) for each in shown]
    more = len(overview.troubles) - len(shown)
    lines[-1] = Text.assemble(lines[-1], styled(f"  (and {more} more)" if more else "", DIM))
    return [*([headline] if only_notes else []), *lines]


def _finding_line(finding: records.OverviewFinding, now_ms: int) -> Text:
    age = f"  for {format_age(finding.since_unix_ms, now_ms)}" if finding.since_unix_ms else ""
    runbook = f"  runbook: {finding.runbook}" if finding.runbook else ""
    text = finding.text or f"{finding.kind.replace('_', ' ')} {finding.subject}"
    style = _SEVERITY_STYLES.get(finding.severity, WARNING)
    return Text.assemble(styled(f"{finding.severity or 'problem'}: {text}", style), styled(age + runbook, DIM))


def _specialist_cells(view: SpecialistView) -> Mapping[str, Text]:
    """Return the cells of a row by column heading; "-" if a figure is unknown."""
    waiting, running = queue_load(view)
    blocks = [each.load.blocks for each in view.replicas if each.load and each.load.blocks]
    total = sum(each.total for each in blocks)
    used = sum(each.used for each in blocks) / total if total else None
    return {
        "specialist": styled(view.name),
        "req/s": _rate(view, "requests"),
        "refused": _rate(view, "refused", BAD),
        "failed": _rate(view, "failed", BAD),
        "spilled": _rate(view, "spilled", WARNING),
        "tok/s": _rate(view, "completion_tokens"),
        "queue": styled(str(waiting), WARNING if waiting else PLAIN),
        "running": styled(str(running)),
        "kv": styled(format_percent(used) or "-", WARNING if used is not None and used >= _FULL else PLAIN),
        "ttft p95": _latency(view, "ttft"),
        "itl p95": _latency(view, "itl"),
        "first p95": _latency(view, "admission_to_first_token"),
        "correct": _correct(view),
        "breaker": _breaker(view),
        "lane": _lane(view),
    }


def _rate(view: SpecialistView, name: str, style: str = PLAIN) -> Text:
    """Format a rate, with `style` if it is above zero."""
    value = getattr(view.rates, name, None)
    return styled("-" if value is None else format_rate(value), style if value else PLAIN)


def _latency(view: SpecialistView, name: str) -> Text:
    """Format the 95th percentile, followed by its target if there is one."""
    objectives = () if view.slo is None else view.slo.objectives
    objective = next((each for each in objectives if each.name == f"{name}_p95"), None)
    text = format_latency(getattr(getattr(view.slo, name, None), "p95", None))
    if objective is None:
        return styled(text)
    return styled(f"{text}/{format_latency(objective.target)}", _objective_style(objective))


def _objective_style(objective: Objective) -> str:
    return {"yes": GOOD, "no": BAD}.get(format_met(objective), PLAIN)


def _correct(view: SpecialistView) -> Text:
    slo = view.slo
    if slo is None or slo.pass_rate is None:
        return styled("-")
    if slo.floor is None:
        return styled(format_percent(slo.pass_rate))
    style = GOOD if slo.pass_rate >= slo.floor else BAD
    learned = "*" if slo.floor_learned else ""
    return styled(f"{format_percent(slo.pass_rate)}/{format_percent(slo.floor)}{learned}", style)


def _breaker(view: SpecialistView) -> Text:
    breaker = view.breaker
    if breaker is None:
        return styled("-")
    if breaker.hold:
        return styled(f"held {breaker.hold}", WARNING)
    return styled(breaker.state.replace("_", " "), _BREAKER_STYLES.get(breaker.state, WARNING))


def _lane(view: SpecialistView) -> Text:
    serving = next((each for each in view.lanes if each.status == "serving"), None)
    name = "-" if serving is None else serving.adapter or "bare"
    notes = [note for note, holds in (("+fresh", view.fresh), ("+candidate", view.candidate is not None)) if holds]
    return styled(" ".join([name, *notes]), WARNING if notes else PLAIN)


def _detail_lines(view: SpecialistView, overview: Overview) -> Iterator[Text]:
    now_ms = overview.at_unix_ms
    yield styled(f"{view.name}: {view.describe}" if view.describe else view.name, BOLD)
    if view.rates is not None:
        rates = view.rates
        confidence = "" if rates.confidence is None else f", mean confidence {rates.confidence:.2f}"
        unserved = f" ({format_rate(rates.unserved)} of them with no specialist left)" if rates.unserved > 0 else ""
        names = ("requests", "answered", "refused", "failed", "spilled", "shadowed")
        parts = [f"{format_rate(getattr(rates, name))} {name}{unserved if name == 'refused' else ''}" for name in names]
        yield styled(f"per second: {', '.join(parts)}{confidence}", BAD if unserved else PLAIN)
    if view.cache_reuse is not None:
        usual = "" if view.usual_cache_reuse is None else f", usually {format_percent(view.usual_cache_reuse)}"
        yield styled(f"cache: {format_percent(view.cache_reuse)} of prompt tokens reused{usual}")
    yield from (_objective_line(each) for each in (view.slo.objectives if view.slo is not None else ()))
    for name, breaker in (("breaker", view.breaker), ("candidate", view.candidate)):
        if breaker is not None:
            held = f", held {breaker.hold} by {breaker.hold_by}: {breaker.hold_why}" if breaker.hold else ""
            passed = f", {format_percent(breaker.pass_rate) or '-'} of {breaker.samples} passed"
            floor = f", floor {format_floor(breaker)}" if breaker.floor is not None else ""
            fallback = f", fallback {breaker.fallback}" if breaker.fallback else ""
            outlook = f"; {breaker.outlook}" if breaker.outlook else ""
            yield styled(f"{name}: {breaker.state.replace('_', ' ')}{held}{passed}{floor}{fallback}{outlook}")
    yield from (_lane_line(each, now_ms) for each in view.lanes)
    yield from (_replica_line(each, now_ms) for each in view.replicas)
    for receipt in [each for each in overview.receipts if each.specialist == view.name][:_MAX_RECEIPTS]:
        why = f" ({receipt.reason})" if receipt.reason else ""
        took, age = format_latency(receipt.total), format_age(receipt.at_unix_ms, now_ms)
        style = PLAIN if receipt.outcome == "answered" else WARNING
        yield styled(f"request {receipt.request_id}: {receipt.outcome}{why} in {took}, {age} ago", style)


def _objective_line(objective: Objective) -> Text:
    state = {"yes": "met", "no": "missed"}.get(format_met(objective), "not measured")
    burns = ", ".join(format_burn(each) for each in objective.burns)
    target, current = (format_objective_value(objective, value) for value in (objective.target, objective.current))
    learned = " (learned)" if objective.learned else ""
    text = f"objective {objective.name}: {current} of {target}{learned}, {state}; burn {burns or '-'}"
    return styled(text, _objective_style(objective))


def _lane_line(lane: LaneInfo, now_ms: int) -> Text:
    age = format_age(lane.since_unix_ms, now_ms)
    text = f"lane {lane.number}: {lane.adapter or 'the bare model'}, {lane.status.replace('_', ' ')}"
    passed = f", {format_percent(lane.pass_rate)} of {lane.samples} passed" if lane.pass_rate is not None else ""
    where = f", on {lane.resident} of {lane.replicas} replicas" if lane.replicas else ""
    return styled(text + (f" for {age}" if age else "") + passed + where)


def _replica_line(replica: ReplicaView, now_ms: int) -> Text:
    info, load = replica.info, replica.load
    if info is None:
        return styled("replica: no information")
    style = PLAIN if info.status == "serving" else WARNING
    restarts = format_restarts(info, now_ms)
    name = f"replica {info.name}: {info.status.replace('_', ' ')}{f', restarts {restarts}' if restarts else ''}"
    if load is None:
        return styled(f"{name}, has not reported", style)
    blocks = "" if load.blocks is None else f", {load.blocks.used} of {load.blocks.total} blocks used"
    wait = "" if load.usual_wait is None else f", usual wait {format_latency(load.usual_wait)}"
    notes = [note for note, holds in (("refusing", load.refusing), ("preempting", load.preempting)) if holds]
    queue = f"{load.running} of {load.max_running} running, {load.waiting} of {load.max_waiting} waiting"
    drafts = ""
    if load.drafted_tokens:
        drafts = f", {100 * load.accepted_tokens / load.drafted_tokens:.0f} % of {load.drafted_tokens} drafts right"
    return styled(", ".join([f"{name}, {queue}{blocks}{wait}{drafts}", *notes]), WARNING if notes else style)


def _build_rows(views: Sequence[SpecialistView], selected: str, columns: int) -> tuple[list[Text], list[list[Text]]]:
    """Return the heading and the rows: one line per specialist if the terminal is wide enough, else two."""
    cells = [_specialist_cells(each) for each in views]
    widths = {}
    for heading in (*_TRAFFIC, *_QUALITY):
        widest = max((each[heading].cell_len for each in cells), default=0)
        most = _MAX_NAME if heading in ("specialist", "lane") else widest
        widths[heading] = max(len(heading), min(widest, most))
    groups: tuple[tuple[str, ...], ...] = ((*_TRAFFIC, *_QUALITY),)
    if _total_width(groups[0], widths) > columns:
        groups = (_TRAFFIC, _QUALITY)
        others = _total_width(_TRAFFIC, widths) - widths["specialist"]
        widths["specialist"] = max(_MIN_NAME, min(widths["specialist"], columns - others))
    names = {name: styled(name, DIM) for name in widths}
    rows = [[_row(group, each, widths, selected) for group in groups] for each in cells]
    return [_row(group, names, widths) for group in groups], rows


def _total_width(headings: Sequence[str], widths: Mapping[str, int]) -> int:
    return _MARKER_WIDTH + sum(widths[each] for each in headings) + len(_GAP) * (len(headings) - 1)


def _row(headings: Sequence[str], cells: Mapping[str, Text], widths: Mapping[str, int], selected: str = "") -> Text:
    is_first = headings[0] == "specialist"
    is_selected = is_first and bool(selected) and cells["specialist"].plain == styled(selected).plain
    fitted = {heading: _fit(cells[heading], widths[heading]) for heading in headings}
    if is_selected:
        fitted["specialist"].stylize(BOLD)
    for heading, cell in fitted.items():
        cell.align("left" if heading in _LEFT_ALIGNED else "right", widths[heading])
    marker = "> " if is_selected else " " * (_MARKER_WIDTH if is_first else 2 * _MARKER_WIDTH)
    return Text.assemble(marker, Text(_GAP).join(fitted.values()))


def _scroll(rows: Sequence[Sequence[Text]], index: int, room: int) -> list[Text]:
    """Return the lines of all rows. If they do not fit, show only rows around `index` and how many are hidden."""
    height = max(map(len, rows), default=1)
    if len(rows) * height <= room:
        return [line for row in rows for line in row]
    num_rows = max(1, (room - 1) // height)
    first = min(max(0, index - num_rows // 2), len(rows) - num_rows)
    lines = [line for row in rows[first : first + num_rows] for line in row]
    return [*lines, styled(f"  ... and {len(rows) - num_rows} more", DIM)][: max(0, room)]


def _fold(lines: Sequence[Text], columns: int) -> list[Text]:
    """Fold the lines to `columns`. Each line has a single style."""
    return [styled(text, str(line.style)) for line in lines for text in fold_text(line.plain, max(1, columns))]


def _fit(line: Text, columns: int) -> Text:
    fitted = line.copy()
    fitted.truncate(columns, overflow="ellipsis")
    return fitted


def _dim(line: Text) -> Text:
    """Dim a line of stale figures; warnings keep their colour."""
    dimmed = line.copy()
    if dimmed.style in (PLAIN, GOOD):
        dimmed.style = DIM
    dimmed.spans = [span for span in dimmed.spans if span.style not in (PLAIN, GOOD)]
    return dimmed
