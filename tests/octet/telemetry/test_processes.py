"""An ensemble in separate processes: a request is one trace across them, and every log line is JSON."""

import json
from pathlib import Path

import grpc

from octet.v1 import inference_pb2 as wire
from tests.octet.telemetry.collector import ReceivedSpan, collecting
from tests.patience import PATIENCE
from tests.serve.ensemble import ServeProcess

ONE = """
name: traced
store: {url: memory}
specialists:
  writer:
    engine: sim
    describe: words and sentences
    examples: ["write me a story", "say it in other words"]
correctness: {fresh_sample_rate: 0, sample_rate: 0}
telemetry:
  otlp: URL
"""
STAGES = {
    "octet.front_door", "octet.route", "octet.pick", "chat writer", "octet.generate",
    "octet.admission", "octet.queue", "octet.prefill", "octet.decode",
}  # fmt: skip


def test_one_request_is_one_trace_and_every_line_is_json(tmp_path: Path) -> None:
    file = tmp_path / "ensemble.yaml"
    with collecting() as collector:
        file.write_text(ONE.replace("URL", collector.url))
        served = ServeProcess(file, tmp_path, "--log-format", "json")
        try:
            served.until(lambda: "octet ready on" in served.out)
            receipts = [ask(served.address) for _ in range(5)]
        finally:
            served.end()
        assert served.popen.returncode == 0
    errors = [check_trace(collector.of(receipt.trace_id), receipt) for receipt in receipts]
    assert min(errors) < 0.05, "the stages of no request add up; on a busy machine some requests have gaps"
    lines = [json.loads(line) for line in served.err.splitlines()]
    assert {line["process"] for line in lines} >= {"writer", "router", "serve"}
    assert all({"time", "level", "message", "process"} <= set(line) for line in lines)


def check_trace(found: list[ReceivedSpan], receipt: wire.Receipt) -> float:
    """Check the spans of a request. Return the relative difference between the sum of its stages and its duration."""
    assert {span.name for span in found} == STAGES and len(found) == len(STAGES), "a span is missing or was sent twice"
    spans = {span.name: span for span in found}
    assert spans["octet.generate"].parent_id == spans["chat writer"].span_id == receipt.attempts[0].span_id
    assert {span.service for span in found} == {"octet-router", "octet-replica"}
    parts = STAGES - {"octet.front_door", "chat writer", "octet.generate"}
    return abs(sum(spans[name].seconds for name in parts) / spans["octet.front_door"].seconds - 1)


def ask(address: str) -> wire.Receipt:
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_stream(
            "/octet.v1.Inference/Generate", wire.InferRequest.SerializeToString, wire.InferEvent.FromString
        )
        asked = wire.InferRequest(
            prompt="write me a story", force_specialists=["writer"], max_tokens=100, ignore_eos=True
        )
        *_, last = method(asked, timeout=PATIENCE)
        receipt: wire.Receipt = last.receipt
        return receipt
