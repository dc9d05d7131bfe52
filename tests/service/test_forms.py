"""Whoever waits behind a form that takes too long is not told that its own does."""

import asyncio
from threading import Event
from typing import Any, cast

import pytest

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from specialist.guide.grammars import Grammars
from specialist.guide.limits import GuideLimits
from specialist.guide.structure import Structure
from specialist.service.ask import Ask
from specialist.service.forms import Forms
from specialist.service.sim_vocabulary import sim_vocabulary
from tests.service.harness import run

VOCABULARY = sim_vocabulary()
SLOW = "slow"


class Compiling(Grammars):
    """One kind of form is held until it is let go."""

    def __init__(self, limits: GuideLimits) -> None:
        super().__init__(VOCABULARY, VOCABULARY.tokenizer.get_vocab_size(), limits)
        self.go = Event()
        self.num_compiled = 0

    def compile(self, structure: Structure) -> Any:
        if SLOW in structure.choices:
            assert self.go.wait(10)
        self.num_compiled += 1
        return super().compile(structure)


class Asking:
    ignore_eos = False

    def __init__(self, *choices: str) -> None:
        self.structure = Structure("choice", choices=choices)


async def guide(forms: Forms, *choices: str) -> Any:
    return await forms.guide(cast(Ask, Asking(*choices)))


def test_an_innocent_form_has_its_own_time_from_its_own_beginning() -> None:
    async def story() -> None:
        grammars = Compiling(GuideLimits(seconds=0.4))
        grammars.table()
        forms = Forms(grammars)
        first = asyncio.create_task(guide(forms, SLOW))
        with pytest.raises(Refusal) as caught:
            await first
        assert caught.value.error.value == "one that takes longer"
        behind = asyncio.create_task(guide(forms, "yes", "no"))
        await asyncio.sleep(0.6)
        assert not behind.done(), "the thread has not come to it yet"
        grammars.go.set()
        assert await behind is not None
        forms.close()

    run(story())


def test_a_place_is_taken_as_long_as_the_thread_works() -> None:
    async def story() -> None:
        grammars = Compiling(GuideLimits(seconds=0.1, compiling=2))
        forms = Forms(grammars)
        for choices in ((SLOW,), ("behind",)):
            with pytest.raises(Refusal) as caught:
                await guide(forms, *choices)
        assert caught.value.error.reason == error_pb2.ERROR_REASON_QUEUE_FULL, "not its own fault"
        late = asyncio.create_task(guide(forms, "late"))
        await asyncio.sleep(0.05)
        with pytest.raises(Refusal, match="compiled"):
            await guide(forms, "one too many")
        late.cancel()
        grammars.go.set()
        async with asyncio.timeout(5):
            while True:
                try:
                    assert await guide(forms, "free again") is not None
                    break
                except Refusal:
                    await asyncio.sleep(0.01)
        await asyncio.gather(late, return_exceptions=True)
        assert grammars.num_compiled == 2, "nobody waited any more for the others"
        forms.close()

    run(story())
