"""Regression tests for inputs that the fuzzers have found."""

import json
from math import inf, nan
from pathlib import Path

import pytest

from octet.client.jobs import Job
from octet.rpc.checks import has_finite_numbers
from octet.v1 import inference_pb2, jobs_pb2, specialist_pb2
from router.dispatch.dispatcher import StreamViolation, _check_finite, _parse_accepted, _parse_event
from router.dispatch.replicas.fleet import _parse_report
from specialist.models.gguf import open_gguf
from specialist.models.progress import silent
from specialist.ops.cpu.packed_weights import open_packed, pack_checkpoint
from tests.fuzz.all import PARSERS
from tests.fuzz.law import judge
from tests.models.gguf_writer import tiny_metadata, tiny_tensors, write_gguf

DEEP = b"[" * 5000
BY_NAME = {parser.name: parser for parser in PARSERS}
REFUSED = [
    ("config.verifier_schema", b'{"minProperties": 1e999}'),
    ("config.verifier_schema", b'{"maximum": NaN}'),
    ("config.verifier_schema", b'{"pattern": "a{99999999999999999999}"}'),
    ("config.records", DEEP),
    ("config.comparisons", DEEP),
    ("config.comparisons", b'{"feat\\ud800ureIndices": [1]}'),
    ("config.comparisons", b'{"requestId": "\\ud800"}'),
    ("config.comparisons", b'{"confidence": 1' + b"0" * 400 + b"}"),
    ("trace.mooncake", b'{"timestamp": ' + DEEP),
]
_TRACE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:01:51,48,10\n2023-11-16 18:01:52+00:00,31,8\n"
PASSED_OVER = [("wire.status", DEEP), ("wire.log_line", b'{"message": ' + DEEP), ("trace.azure", _TRACE)]


@pytest.mark.parametrize(("name", "raw"), REFUSED)
def test_an_invalid_input_is_refused_with_a_typed_error(name: str, raw: bytes) -> None:
    assert not judge(BY_NAME[name], raw, "found before")


@pytest.mark.parametrize(("name", "raw"), PASSED_OVER)
def test_an_invalid_input_is_skipped(name: str, raw: bytes) -> None:
    assert judge(BY_NAME[name], raw, "found before")


@pytest.mark.parametrize("wrong", [nan, inf, -inf])
def test_nan_from_a_replica_reaches_no_receipt(wrong: float) -> None:
    """JSON cannot represent NaN, and one receipt that contains it would make a whole list of receipts unreadable."""
    used = specialist_pb2.GenerateEvent(usage={"timings": {"total": wrong}})
    with pytest.raises(StreamViolation, match="not finite"):
        _check_finite(_parse_event(used.SerializeToString()).usage)
    taken = specialist_pb2.GenerateEvent(accepted={"forecast": {"slack": wrong}})
    with pytest.raises(StreamViolation, match="not finite"):
        _parse_accepted(taken.SerializeToString())
    with pytest.raises(ValueError, match="not finite"):
        _parse_report(specialist_pb2.LoadReport(decode_rate=wrong).SerializeToString())


def test_numbers_are_checked_at_every_depth() -> None:
    top = specialist_pb2.TokenLogprob(logprob=nan)
    chunk = specialist_pb2.GenerateEvent(chunk={"logprobs": [{"chosen": 1.0}, {"chosen": 0.5, "top": [top]}]})
    assert not has_finite_numbers(chunk)
    top.logprob = -1.0
    assert has_finite_numbers(specialist_pb2.GenerateEvent(chunk={"logprobs": [{"chosen": 0.5, "top": [top]}]}))
    assert has_finite_numbers(inference_pb2.Receipt())


@pytest.mark.parametrize("unix_ms", [2**63 - 1, -(2**63), 2**55, 0])
def test_a_job_of_no_calendar_can_be_shown(unix_ms: int) -> None:
    job = Job.from_wire(jobs_pb2.Job(id="j", submitted_unix_ms=unix_ms, started_unix_ms=unix_ms))
    assert json.dumps(job.to_dict())


def test_prepared_weights_with_a_bit_flipped_anywhere_are_not_used(tmp_path: Path) -> None:
    """Bits are also flipped in the bytes that store the position of the table of tensors."""
    written = _prepared(tmp_path / "weights")
    assert open_packed(written) is not None
    raw = written.read_bytes()
    for at in [*range(0, len(raw) - 48, 977), *range(len(raw) - 48, len(raw))]:
        flipped = bytearray(raw)
        flipped[at] ^= 0x10
        (tmp_path / "flipped").write_bytes(flipped)
        assert open_packed(tmp_path / "flipped") is None


def _prepared(cache: Path) -> Path:
    model = cache.with_suffix(".gguf")
    write_gguf(model, tiny_metadata(), tiny_tensors("Q8_0"))
    pack_checkpoint(open_gguf(model, silent), cache)
    (written,) = (cache / "weights").iterdir()
    return written
