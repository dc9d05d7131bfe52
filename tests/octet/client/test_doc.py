"""The examples and tables in docs/sdk.md are correct."""

import re
from pathlib import Path
from typing import get_type_hints

import grpc
import pytest

from octet import OctetError, client
from octet.client.options import Options
from octet.v1 import inference_pb2 as wire
from tests.octet.client.server import ScriptedCall, busy, refuse, scripted
from tests.test_docs import ROOT, run_example

DOCUMENT = (ROOT / "docs" / "sdk.md").read_text()
STREAM, ASYNC, CONVERSATION, ERRORS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
NO_SPECIALIST = refuse(grpc.StatusCode.FAILED_PRECONDITION, wire.ERROR_REASON_NO_SPECIALIST)


@pytest.mark.parametrize(
    ("example", "acts", "shown"),
    [
        (STREAM, [], "one two threestl the classifier is sure\n"),
        (ASYNC, [], "one two threestl 0.81 the classifier is sure\n"),
        (CONVERSATION, [], "one two three\none two three2 stl\n"),
        (ERRORS, [], "one two three\n"),
        (ERRORS, [NO_SPECIALIST], "no specialist for this; considered: ['stl', 'template']\n"),
        (ERRORS, [busy(90_000)], "try again in 90.0 seconds\n"),
    ],
)
def test_documented_examples_work(example: str, acts: list[ScriptedCall], shown: str, tmp_path: Path) -> None:
    with scripted(*acts) as script:
        assert run_example(example.replace("localhost:50051", script.address), tmp_path) == shown


def test_every_option_and_error_is_documented() -> None:
    result = set(re.findall(r"`(\w+)`", DOCUMENT))
    assert set(get_type_hints(Options)) <= result
    kinds = [kind for kind in vars(client).values() if isinstance(kind, type) and issubclass(kind, OctetError)]
    assert {kind.__name__ for kind in kinds} - {"OctetError"} <= result
