"""One choice of an answer, as it is heard."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from octet.v1 import inference_pb2 as wire
from router.http.blocks import Blocks

_REASONS = {wire.FINISH_REASON_STOP: "stop", wire.FINISH_REASON_LENGTH: "length"}


@dataclass(slots=True)
class Choice:
    index: int
    keeps: bool
    """Whether all of it is kept, or only told."""
    text: list[str] = field(default_factory=list)
    logprobs: list[wire.TokenLogprobs] = field(default_factory=list)
    blocks: Blocks = field(init=False)
    """Its calls are kept also where it is only told: its end says whether one of them can be made."""
    routed: wire.Receipt | None = None
    """As far as is known, while it is being answered."""
    receipt: wire.Receipt | None = None

    def __post_init__(self) -> None:
        self.blocks = Blocks(keeps_text=self.keeps)

    def hear(self, chunk: wire.Chunk) -> None:
        if self.keeps:
            self.text.append(chunk.text)
            self.logprobs += chunk.logprobs
        if self.keeps or chunk.tool_calls or not self.blocks.ends_in_text:
            self.blocks.hear(chunk)

    @property
    def specialist(self) -> str:
        known = self.receipt or self.routed
        return "" if known is None else known.specialist

    @property
    def revision(self) -> str:
        known = self.receipt or self.routed
        return "" if known is None else known.lane.revision

    @property
    def finish_reason(self) -> str:
        """Every other end is an error, and comes without a receipt here. Raises KeyError, RuntimeError."""
        if self.receipt is None:
            raise RuntimeError("it has not ended")
        reason = _REASONS[self.receipt.usage.finish_reason]
        return "tool_calls" if reason == "stop" and self.blocks.has_calls else reason

    def partial(self) -> dict[str, object]:
        return {"index": self.index, "text": "".join(self.text)}


def partials(choices: Sequence[Choice]) -> list[dict[str, object]]:
    """What was said, of those that had said something."""
    return [choice.partial() for choice in choices if any(choice.text)]
