"""A specialist's figures in one line, beside every answer: a list of structured fields, as RFC 9651 has them."""

from octet.v1 import slo_pb2 as wire

NAME = "octet-slo"
"""Of the header, and of the key in gRPC's metadata."""


def header_of(slo: wire.Slo) -> str:
    """Seconds and shares to three decimals: structured fields have no more. What was not measured is left out."""
    members = [
        *_latency("ttft", slo.ttft, "p50", "p95", "p99"),
        *_latency("itl", slo.itl, "p50", "p95", "p99"),
        *_latency("first-token", slo.admission_to_first_token, "p95"),
        *_correctness(slo),
        *_preempted(slo),
        f"window;s={_number(slo.window_seconds)}",
    ]
    return ", ".join(members)


def _latency(name: str, latency: wire.Latency, *quantiles: str) -> list[str]:
    if not latency.samples:
        return []
    told = "".join(f";{each}={_number(getattr(latency, each))}" for each in quantiles)
    return [f"{name}{told};n={latency.samples}"]


def _correctness(slo: wire.Slo) -> list[str]:
    if not slo.HasField("pass_rate"):
        return []
    floor = f";floor={_number(slo.floor)}" if slo.HasField("floor") else ""
    return [f"correctness;rate={_number(slo.pass_rate)}{floor};n={slo.judged}"]


def _preempted(slo: wire.Slo) -> list[str]:
    return [f"preempted;share={_number(slo.preempted_once)};n={slo.answered}"] if slo.answered else []


def _number(value: float) -> str:
    """300, 0.081, 0.2."""
    text = f"{value:.3f}".rstrip("0")
    return text.removesuffix(".") if text.endswith(".") else text
