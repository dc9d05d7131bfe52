"""W3C trace context: a valid header is continued; anything else starts a new trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.telemetry.requests import parse_traceparent
from router.request import Tracer, clean_tracestate

HEX = "0123456789abcdef"
TRACE = st.text(HEX, min_size=32, max_size=32).filter(lambda text: text.strip("0"))
SPAN = st.text(HEX, min_size=16, max_size=16).filter(lambda text: text.strip("0"))
FLAGS = st.integers(0, 255)
GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def tracer(draws: bytes = b"\x07") -> Tracer:
    return Tracer(lambda num_bytes: draws * num_bytes)


@given(TRACE, SPAN, FLAGS)
def test_a_valid_trace_is_continued(trace_id: str, span: str, flags: int) -> None:
    trace = tracer().receive(f"00-{trace_id}-{span}-{flags:02x}")
    assert (trace.trace_id, trace.parent_id, trace.flags) == (trace_id, span, flags & 3)
    child = parse_traceparent(tracer().outgoing(trace).headers[0][1])
    assert child is not None
    assert (child.trace_id, child.span_id, child.flags) == (trace_id, "07" * 8, flags & 3)


@given(
    st.text(max_size=80)
    | st.builds(lambda at, what: GOOD[:at] + what + GOOD[at + 1 :], st.integers(0, 54), st.text(max_size=2))
)
def test_any_header_gives_a_valid_span(header: str) -> None:
    trace = tracer().receive(header)
    assert parse_traceparent(tracer().outgoing(trace).headers[0][1]) is not None
    assert trace.trace_id == "07" * 16 or trace.trace_id in header


@pytest.mark.parametrize(
    "header",
    [
        "",
        GOOD.upper(),
        GOOD + "-00",
        GOOD[:-1],
        f" {GOOD}",
        f"{GOOD}\n",
        "ff" + GOOD[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        "cc" + GOOD[2:] + "more",
    ],
)
def test_an_invalid_header_begins_a_trace(header: str) -> None:
    assert parse_traceparent(header) is None
    assert tracer().receive(header).parent_id == ""


def test_a_later_version_may_have_more_fields() -> None:
    assert parse_traceparent("cc" + GOOD[2:] + "-what-the-future-brings") == parse_traceparent(GOOD)


def test_an_id_of_zeros_is_never_used() -> None:
    trace = tracer(b"\0").receive(None)
    assert parse_traceparent(tracer(b"\0").outgoing(trace).headers[0][1]) is not None


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("", ""),
        ("a=1", "a=1"),
        (" a=1 ,\t,b@c= 2 ", "a=1,b@c= 2"),
        ("a", ""),
        ("a=1,B=2", ""),
        ("a=1=2", ""),
        ("a=\u00e4", ""),
        ("a=1\n", ""),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        (f"a={'x' * 250},b={'y' * 250},c={'z' * 250}", f"a={'x' * 250},b={'y' * 250}"),
    ],
)
def test_trace_state_is_passed_on_within_its_limit(state: str, kept: str) -> None:
    assert clean_tracestate(state) == kept
    headers = dict(tracer().outgoing(tracer().receive(GOOD, state)).headers)
    assert headers.get("tracestate", "") == kept and parse_traceparent(headers["traceparent"]) is not None


@given(st.text(max_size=2000) | st.text("ab=,@ \t", max_size=2000))
def test_passed_on_trace_state_is_short_and_printable(state: str) -> None:
    kept = clean_tracestate(state)
    assert len(kept) <= 512 and kept.isascii() and (kept.isprintable() or not kept)
    assert clean_tracestate(kept) == kept
    assert tracer().receive("nonsense", state).state == ""
