"""A conversation through a router: every turn repeats all turns before it."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc

from octet.v1 import inference_pb2 as wire
from tests.router.serving.harness import CallResult, RouterHarness, infer_request

LONG_QUESTION = "and then tell me what comes after number {} of all the things that there are in this one store"
"""A question so long that a turn has far more tokens than a block."""


@dataclass
class Conversation:
    routed: RouterHarness
    fields: dict[str, Any]
    question: str = LONG_QUESTION
    messages: list[wire.Message] = field(default_factory=list)
    receipts: list[wire.Receipt] = field(default_factory=list)

    async def turn(self, **fields: Any) -> CallResult:
        result = await self.routed.ask(self._next(fields))
        assert result.receipt is not None
        self._add_answer(result.text)
        self.receipts.append(result.receipt)
        return result

    async def cut_turn(self, num_tokens: int, **fields: Any) -> None:
        """Send a turn, cancel it after at least `num_tokens` tokens, and continue with the text received until then."""
        call, text, num_received = self.routed.generate(self._next(fields)), "", 0
        async for event in call:
            if event.WhichOneof("event") == "chunk":
                text += event.chunk.text
                num_received += len(event.chunk.token_ids)
                if num_received >= num_tokens:
                    break
        call.cancel()
        assert await call.code() == grpc.StatusCode.CANCELLED
        self._add_answer(text)

    def _next(self, fields: dict[str, Any]) -> wire.InferRequest:
        question = self.question.format(len(self.messages) // 2)
        self.messages.append(wire.Message(role="user", content=question))
        given = {**self.fields, **fields}
        return infer_request("", messages=self.messages, **given)

    def _add_answer(self, text: str) -> None:
        self.messages.append(wire.Message(role="assistant", content=text))

    @property
    def computed(self) -> list[int]:
        """For every turn, the number of prompt tokens that were computed instead of being found in the cache."""
        return [receipt.usage.prompt_tokens - receipt.usage.cache_hit_tokens for receipt in self.receipts]

    @property
    def fresh(self) -> list[int]:
        """For every turn but the first, the number of prompt tokens that no earlier turn can have computed. The last
        token of an answer is sampled but never computed."""
        usages = [receipt.usage for receipt in self.receipts]
        pairs = pairwise(usages)
        return [new.prompt_tokens - (old.prompt_tokens + old.completion_tokens - 1) for old, new in pairs]

    @property
    def misses(self) -> list[str]:
        reasons = wire.MissReason
        return [reasons.Name(each.usage.miss_reason).removeprefix("MISS_REASON_").lower() for each in self.receipts]
