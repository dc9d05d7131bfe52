"""Rows 13 and 14 of docs/reliability.md: a prompt that can never fit is refused immediately, and text designed to be
slow to parse is not slow."""

import time

import pytest

from octet.v1 import specialist_pb2 as wire
from router.routing.rules.detectors import DETECTORS
from router.routing.rules.text import ScannedText
from router.routing.validation import USER, routing_text
from tests.faults.figures import Figure
from tests.router.routing.test_rules_time import MEGABYTE
from tests.specialist.server.harness import QUICK, ask, generate_request, running_replica, sim

NESTED = ("template<", "template<typename T, template<", "std::enable_if<std::is_same<", "({[<", "required from here\n")


async def test_13_a_prompt_larger_than_the_pool_is_refused_at_once(figure: Figure) -> None:
    """The pool has four blocks of 16 tokens: the prompt and the first token of its answer can never fit."""
    async with running_replica(sim(QUICK, num_blocks=4, context=512)) as served:
        seconds = []
        for length in (64, 100, 400):
            began = time.perf_counter()
            received = await ask(served.client, generate_request("x" * length))
            seconds.append(time.perf_counter() - began)
            assert received.accepted is None and received.error is not None and received.error.error is not None
            assert received.error.error.reason == wire.ERROR_REASON_PROMPT_TOO_LONG, received.error
            assert str(length) in str(received.error) and "63" in str(received.error)
        fits = await ask(served.client, generate_request("x" * 62, max_tokens=1, ignore_eos=True))
        assert fits.error is None and len(fits.tokens) == 1, "a prompt that just fits must be served"
        figure(13, "time until refused", max(seconds), "s", "< 0.05 s", short="< 120 s")


@pytest.mark.parametrize("piece", NESTED)
def test_14_a_megabyte_of_nested_templates_is_parsed_fast(piece: str, figure: Figure) -> None:
    text = (piece * (MEGABYTE // len(piece) + 1))[:MEGABYTE]
    seconds = []
    for _ in range(3):
        began = time.process_time()
        # Only the part of the text that decides the routing is scanned.
        page = ScannedText(routing_text((wire.Message(role=USER, content=text),)))
        for detect in DETECTORS.values():
            detect(page)
        seconds.append(time.process_time() - began)
    figure(14, f"CPU of the rules for a megabyte of {piece!r}", min(seconds), "s", "< 0.02 s", short="< 0.2 s")
