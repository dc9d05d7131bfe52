"""Callers that send requests without a pause and keep every answer."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from octet import AsyncClient, OctetError
from tests.patience import PATIENCE

PROMPTS = tuple(f"question number {number}" for number in range(8))
TOKENS = 24


@dataclass
class CallerResults:
    answers: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Answer texts by specialist and prompt. Sampling is greedy, so each set must have one element."""
    num_answers: int = 0
    num_answers_by: Counter[str] = field(default_factory=Counter)  # by replica
    errors: list[OctetError] = field(default_factory=list)

    def check_answers(self) -> None:
        assert self.num_answers > 0
        assert all(len(texts) == 1 for texts in self.answers.values()), self.answers


class Load:
    """Callers whose clients do not retry."""

    def __init__(self, address: str, specialists: tuple[str, ...], num_callers: int) -> None:
        self._address = address
        self._specialists = specialists
        self._num_callers = num_callers
        self.results = CallerResults()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        async with AsyncClient(self._address, max_retries=0) as client:
            callers = [asyncio.create_task(self._call(client, number)) for number in range(self._num_callers)]
            try:
                yield self
            finally:
                self._ended = True
                await asyncio.gather(*callers)

    _ended = False

    async def _call(self, client: AsyncClient, number: int) -> None:
        while not self._ended:
            specialist = self._specialists[number % len(self._specialists)]
            prompt = PROMPTS[number % len(PROMPTS)]
            number += 1
            try:
                answer = await client.infer(
                    prompt, force=[specialist], max_tokens=TOKENS, temperature=0.0, ignore_eos=True, timeout=20
                )
            except OctetError as error:
                self.results.errors.append(error)
                continue
            assert answer.receipt.specialist == specialist
            self.results.num_answers += 1
            self.results.num_answers_by[answer.receipt.replica] += 1
            self.results.answers.setdefault((specialist, prompt), set()).add(answer.text)

    async def answered(self, more: int, seconds: float = PATIENCE) -> None:
        """Wait until `more` further answers have arrived."""
        enough = self.results.num_answers + more
        async with asyncio.timeout(seconds):
            while self.results.num_answers < enough:
                await asyncio.sleep(0.01)

    async def answered_by(self, replica: str) -> None:
        """Wait until the replica has sent a further answer: the router has found its new process."""
        before = self.results.num_answers_by[replica]
        async with asyncio.timeout(PATIENCE):
            while self.results.num_answers_by[replica] == before:
                await asyncio.sleep(0.01)
