"""Metrics pages of replicas are merged with labels that name the replica. Invalid pages are left out."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric

from octet.telemetry.distributions import Histogram
from octet.telemetry.exposition import counter_family, gauge_family, histogram_family, write_exposition
from router.observe.metrics.replicas import ReplicaScrape, merge_scrapes
from tests.monitoring.exported import families

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
words = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.sampled_from(('a,specialist="', "}", "\\"))
)
figures = st.floats(allow_nan=False)
labelled = st.dictionaries(words, figures, max_size=3)


def page_of(some: dict[str, float], counted: float, values: list[float], owner: str) -> bytes:
    ranges = Histogram((0.1, 2.0))
    for value in values:
        ranges.add(value)
    scrapes = [
        gauge_family(
            "a_ratio", "With a \\ and\na line.", ("of", "specialist"), (((of, owner), num) for of, num in some.items())
        ),
        counter_family("b_total", "", (), [((), counted)]),
        histogram_family("c_seconds", "c", ("specialist",), [((owner,), ranges)]),
    ]
    return write_exposition("", scrapes).body


def series(found: list[Metric], more: dict[str, str]) -> Series:
    samples = (sample for family in found for sample in family.samples)
    return {(each.name, frozenset({**each.labels, **more}.items())): each.value for each in samples}


@given(st.lists(st.tuples(labelled, figures, st.lists(figures, max_size=3), words), max_size=3), words)
def test_every_sample_has_its_owner_labels(
    scrapes: list[tuple[dict[str, float], float, list[float], str]], name: str
) -> None:
    pages = [page_of(*each) for each in scrapes]
    malformed: list[str] = []
    text = merge_scrapes([ReplicaScrape(name, f"{name}-{i}", page) for i, page in enumerate(pages)], malformed, pause=0)
    found = families(text.decode())
    assert not malformed and len({family.name for family in found}) == len(found)
    expected: Series = {}
    for i, page in enumerate(pages):
        whose = {"specialist": name, "replica": f"{name}-{i}"}
        expected |= {("octet_replica_up", frozenset(whose.items())): 1.0, **series(families(page.decode()), whose)}
    assert series(found, {}) == expected


GOOD = b"# HELP a_total x\n# TYPE a_total counter\na_total 1\n"
BAD = (
    b'a{b="c" 1\n\xff',
    GOOD + GOOD,
    GOOD[:-1],
    GOOD + b"b 1\n",
    GOOD + b"a_total{} x\n",
    GOOD + b'a_total{b="c}" 1\n',
    GOOD + b'a_total{b="c\\x"} 1\n',
    GOOD + b"\n",
    b"# HELP b x\n# TYPE a_total counter\na_total 1\n",
    b"# TYPE a_total summary\n",
    b"a_total 1\n",
    b"<html>\n",
)


def test_an_unreadable_page_is_left_out() -> None:
    for bad in BAD:
        malformed: list[str] = []
        scrapes = [
            ReplicaScrape("writer", "writer-0", GOOD),
            ReplicaScrape("writer", "writer-1", bad),
            ReplicaScrape("coder", "coder-0", None),
            ReplicaScrape("coder", "coder-1", b"# TYPE a_total gauge\na_total 7\n"),
        ]
        up, counted, *more = families(merge_scrapes(scrapes, malformed).decode())
        assert malformed == ["writer"] and not more, bad
        assert [sample.value for sample in up.samples] == [1, 0, 0, 1]
        assert [(sample.labels, sample.value) for sample in counted.samples] == [
            ({"specialist": "writer", "replica": "writer-0"}, 1.0)
        ]
