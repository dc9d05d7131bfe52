"""The whole of it in processes of their own: one trace across them, and lines of JSON from all of them."""

import json
from pathlib import Path

import grpc

from octet.v1 import inference_pb2 as wire
from tests.octet.telemetry.collector import collecting
from tests.serve.ensemble import Served

ONE = """
name: traced
store: {url: memory}
specialists:
  writer:
    engine: sim
    describe: words and sentences
    examples: ["write me a story", "say it in other words"]
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
        served = Served(file, tmp_path, "--log-format", "json")
        try:
            served.until(lambda: "octet ready on" in served.out)
            receipt = ask(served.address)
        finally:
            served.end()
        assert served.popen.returncode == 0
        found = collector.of(receipt.trace_id)
    assert {span.name for span in found} == STAGES and len(found) == len(STAGES), "nothing was lost at the end"
    spans = {span.name: span for span in found}
    assert spans["octet.generate"].parent_id == spans["chat writer"].span_id == receipt.attempts[0].span_id
    assert {span.service for span in found} == {"octet-router", "octet-replica"}
    front = spans["octet.front_door"]
    parts = STAGES - {"octet.front_door", "chat writer", "octet.generate"}
    assert abs(sum(spans[name].seconds for name in parts) / front.seconds - 1) < 0.05
    lines = [json.loads(line) for line in served.err.splitlines()]
    assert {line["process"] for line in lines} >= {"writer", "router", "serve"}
    assert all({"time", "level", "message", "process"} <= set(line) for line in lines)


def ask(address: str) -> wire.Receipt:
    with grpc.insecure_channel(address) as channel:
        method = channel.unary_stream(
            "/octet.v1.Inference/Generate", wire.InferRequest.SerializeToString, wire.InferEvent.FromString
        )
        asked = wire.InferRequest(
            prompt="write me a story", force_specialists=["writer"], max_tokens=200, ignore_eos=True
        )
        *_, last = method(asked, timeout=60)
        receipt: wire.Receipt = last.receipt
        return receipt
