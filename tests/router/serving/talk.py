"""A conversation over a router: every turn says all that was said before."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc

from octet.v1 import inference_pb2 as wire
from tests.router.serving.harness import Heard, Routed, asking

LONG_QUESTION = "and then tell me what comes after number {} of all the things that there are in this one house"
"""Long enough that half a block more or less is not half a turn."""


@dataclass
class Talk:
    routed: Routed
    fields: dict[str, Any]
    question: str = LONG_QUESTION
    messages: list[wire.Message] = field(default_factory=list)
    receipts: list[wire.Receipt] = field(default_factory=list)

    async def turn(self, **fields: Any) -> Heard:
        heard = await self.routed.ask(self._next(fields))
        assert heard.receipt is not None
        self._heard(heard.text)
        self.receipts.append(heard.receipt)
        return heard

    async def cut_turn(self, num_tokens: int, **fields: Any) -> None:
        """The caller hangs up behind so many tokens, or a few more. What it heard by then it goes on from."""
        call, text, heard = self.routed.generate(self._next(fields)), "", 0
        async for event in call:
            if event.WhichOneof("event") == "chunk":
                text += event.chunk.text
                heard += len(event.chunk.token_ids)
                if heard >= num_tokens:
                    break
        call.cancel()
        assert await call.code() == grpc.StatusCode.CANCELLED
        self._heard(text)

    def _next(self, fields: dict[str, Any]) -> wire.InferRequest:
        question = self.question.format(len(self.messages) // 2)
        self.messages.append(wire.Message(role="user", content=question))
        given = {**self.fields, **fields}
        return asking("", messages=self.messages, **given)

    def _heard(self, text: str) -> None:
        self.messages.append(wire.Message(role="assistant", content=text))

    @property
    def computed(self) -> list[int]:
        """Prompt tokens of every turn."""
        return [receipt.usage.prompt_tokens - receipt.usage.cache_hit_tokens for receipt in self.receipts]

    @property
    def fresh(self) -> list[int]:
        """Prompt tokens of every turn but the first that no turn before can have computed. The last token of an answer
        was said, and never computed."""
        usages = [receipt.usage for receipt in self.receipts]
        pairs = pairwise(usages)
        return [new.prompt_tokens - (old.prompt_tokens + old.completion_tokens - 1) for old, new in pairs]

    @property
    def misses(self) -> list[str]:
        reasons = wire.MissReason
        return [reasons.Name(each.usage.miss_reason).removeprefix("MISS_REASON_").lower() for each in self.receipts]
