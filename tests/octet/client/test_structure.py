"""Structured output in the SDK."""

from typing import Any

import pytest

import octet
from octet.client.request import prepare_request
from octet.v1 import inference_pb2 as wire


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"type": "null"}, wire.Structure(json_schema='{"type": "null"}')),
        (octet.Json({"type": "null"}), wire.Structure(json_schema='{"type": "null"}')),
        (octet.Json(), wire.Structure(json_object=True)),
        (octet.Regex("a+"), wire.Structure(regex="a+")),
        (octet.Choice("yes", "no"), wire.Structure(choice=wire.Choices(choices=["yes", "no"]))),
    ],
)
def test_options_have_their_wire_form(asked: Any, sent: wire.Structure) -> None:
    assert prepare_request("x", {"structure": asked}).message.structure == sent


@pytest.mark.parametrize("asked", ["a+", 3, octet.Json({"maximum": float("nan")}), octet.Regex(3), octet.Choice(1)])  # type: ignore[arg-type]
def test_invalid_option_is_refused(asked: Any) -> None:
    with pytest.raises(octet.InvalidRequest, match="structure"):
        prepare_request("x", {"structure": asked})
