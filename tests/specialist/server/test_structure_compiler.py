"""The time limit for compiling a structure does not include the time for which it waits behind a slow one."""

import asyncio
from threading import Event
from typing import Any, cast

import pytest

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from specialist.engines.sim.vocabulary import sim_vocabulary
from specialist.server.preparation import StructureCompiler
from specialist.server.served_request import ServedRequest
from specialist.text.prompt import Structure
from specialist.text.structured_output import GrammarCache, GrammarLimits
from tests.patience import PATIENCE

VOCABULARY = sim_vocabulary()
SLOW = "slow"


class SlowGrammarCache(GrammarCache):
    """A cache that holds the compilation of a slow structure until `go` is set."""

    def __init__(self, limits: GrammarLimits) -> None:
        super().__init__(VOCABULARY, VOCABULARY.tokenizer.get_vocab_size(), limits)
        self.begun, self.go = Event(), Event()
        self.compiled: list[str] = []

    def compile(self, structure: Structure) -> Any:
        if SLOW in structure.choices:
            self.begun.set()
            assert self.go.wait(PATIENCE)
        self.compiled += structure.choices
        return super().compile(structure)


class FakeRequest:
    ignore_eos = False

    def __init__(self, *choices: str) -> None:
        self.structure = Structure("choice", choices=choices)


async def guide(forms: StructureCompiler, *choices: str) -> Any:
    return await forms.guide(cast(ServedRequest, FakeRequest(*choices)))


async def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let time pass for the event loop at once, after all that is ready has run. Run what is due then."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        await asyncio.sleep(0)
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + seconds)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_structure_has_its_full_time_from_its_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = SlowGrammarCache(GrammarLimits(seconds=30.0))
    grammars.vocabulary()
    forms = StructureCompiler(grammars)
    first = asyncio.create_task(guide(forms, SLOW))
    assert await asyncio.to_thread(grammars.begun.wait, PATIENCE)
    await pass_time(monkeypatch, 31.0)
    with pytest.raises(Refusal) as caught:
        await first
    assert caught.value.error.value == "a longer compile time"
    behind = asyncio.create_task(guide(forms, "yes", "no"))
    await pass_time(monkeypatch, 36.0)
    assert not behind.done(), "the thread must not have started to compile the structure"
    grammars.go.set()
    assert await behind is not None
    forms.close()


async def test_slot_is_in_use_until_the_thread_is_done() -> None:
    grammars = SlowGrammarCache(GrammarLimits(seconds=0.1, compiling=2))
    forms = StructureCompiler(grammars)
    for choices in ((SLOW,), ("behind",)):
        with pytest.raises(Refusal) as caught:
            await guide(forms, *choices)
    assert caught.value.error.reason == error_pb2.ERROR_REASON_QUEUE_FULL, (
        "a full queue must not be reported as the caller's error"
    )
    late = asyncio.create_task(guide(forms, "late"))
    await asyncio.sleep(0.05)
    with pytest.raises(Refusal, match="compiled"):
        await guide(forms, "one too many")
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    grammars.go.set()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                assert await guide(forms, "free again") is not None
                break
            except Refusal:
                await asyncio.sleep(0.01)
    assert set(grammars.compiled) == {SLOW, "free again"}, "abandoned structures must not be compiled"
    forms.close()
