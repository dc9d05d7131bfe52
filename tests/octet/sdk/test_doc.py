"""docs/sdk.md says what is true."""

import re
from pathlib import Path
from typing import get_type_hints

import grpc
import pytest

from octet import OctetError, sdk
from octet.sdk.options import Options
from octet.v1 import inference_pb2 as wire
from tests.octet.sdk.server import Act, busy, refuse, scripted
from tests.test_docs import ROOT, run_example

DOCUMENT = (ROOT / "docs" / "sdk.md").read_text()
STREAM, ASYNC, CONVERSATION, ERRORS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
NOBODY = refuse(grpc.StatusCode.FAILED_PRECONDITION, wire.ERROR_REASON_NO_SPECIALIST)


@pytest.mark.parametrize(
    ("example", "acts", "shown"),
    [
        (STREAM, [], "one two threestl the classifier is sure\n"),
        (ASYNC, [], "one two threestl 0.81 the classifier is sure\n"),
        (CONVERSATION, [], "one two three\none two three2 stl\n"),
        (ERRORS, [], "one two three\n"),
        (ERRORS, [NOBODY], "nobody for that; considered were ['stl', 'template']\n"),
        (ERRORS, [busy(90_000)], "try again in 90.0 seconds\n"),
    ],
)
def test_an_example_does_what_it_seems_to(example: str, acts: list[Act], shown: str, tmp_path: Path) -> None:
    with scripted(*acts) as script:
        assert run_example(example.replace("localhost:50051", script.address), tmp_path) == shown


def test_every_option_and_every_error_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", DOCUMENT))
    assert set(get_type_hints(Options)) <= told
    kinds = [kind for kind in vars(sdk).values() if isinstance(kind, type) and issubclass(kind, OctetError)]
    assert {kind.__name__ for kind in kinds} - {"OctetError"} <= told
