"""Shadows and verifiers."""

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from octet.telemetry.families import counter, gauge, histogram
from octet.telemetry.page import Build
from router.after.aftermath import Aftermath
from router.metrics.judging import JudgingTally
from router.shadow.shadows import Shadows

_COMPARED = ("specialist", "shadow", "why")


def after_source(aftermath: Aftermath, shadows: Shadows, judging: JudgingTally) -> Build:
    judged, compared = tuple(judging.judged.items()), tuple(judging.compared.items())
    agreed, seconds = tuple(judging.agreed.items()), tuple(aftermath.seconds.items())

    def build() -> Iterator[Metric]:
        yield from _shadows(shadows)
        yield counter(
            "octet_shadow_comparisons_total",
            "Answers that were compared with their shadows', by who passed: both, neither, primary, shadow, unjudged.",
            (*_COMPARED, "passed"),
            compared,
        )
        about = "Comparisons in which both had the same outcome and similar text."
        yield counter("octet_shadow_agreements_total", about, _COMPARED, agreed)
        about = "Answers that a verifier could judge, by its verdict."
        yield counter("octet_judged_answers_total", about, ("specialist", "outcome"), judged)
        yield from _verifiers(aftermath)
        yield histogram(
            "octet_verify_seconds",
            "What judging and comparing one answer took.",
            ("specialist", "verifier"),
            (((place.specialist, place.verifier), found) for place, found in seconds),
        )

    return build


def _shadows(shadows: Shadows) -> Iterator[Metric]:
    tally = shadows.tally
    yield counter(
        "octet_shadows_ordered_total", "Copies that were to be sent for a second opinion.", (), [((), tally.ordered)]
    )
    yield counter(
        "octet_shadows_total",
        "What became of shadows: answered, shed, failed.",
        ("outcome",),
        [(("answered",), tally.answered), (("shed",), tally.shed), (("failed",), tally.failed)],
    )
    yield gauge("octet_shadows_inflight", "Copies that are under way.", (), [((), shadows.num_inflight)])
    yield gauge(
        "octet_shadow_held_bytes",
        "Of what shadows under way were asked and have answered.",
        (),
        [((), shadows.room.taken)],
    )


def _verifiers(aftermath: Aftermath) -> Iterator[Metric]:
    tally = aftermath.tally
    yield counter("octet_verifier_answers_total", "Answers that were handed to verifiers.", (), [((), tally.handed)])
    yield counter(
        "octet_verifier_unjudged_answers_total",
        "Those that were not judged: undecided, unread (too long, or no room), shed (newer came), failed (a mistake).",
        ("reason",),
        [
            (("undecided",), tally.undecided),
            (("unread",), tally.unread),
            (("shed",), tally.shed),
            (("failed",), tally.failed),
        ],
    )
    yield gauge("octet_verifier_waiting_answers", "Answers that wait to be judged.", (), [((), aftermath.num_waiting)])
    yield gauge("octet_verifier_held_bytes", "Of answers that are kept to be judged.", (), [((), aftermath.room.taken)])
    yield gauge("octet_verifier_held_limit_bytes", "Of answers that may be kept.", (), [((), aftermath.room.most)])
