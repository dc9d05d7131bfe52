"""What a request may hold, field by field. Every method raises Refusal: field, limit, value."""

from collections.abc import Mapping, Sequence
from typing import Any

from octet.rpc.checks import Checks
from octet.rpc.refusal import invalid, shorten
from octet.rpc.tool_checks import ToolChecks, texts_of
from octet.v1 import inference_pb2 as wire
from router.reception.limits import Limits
from router.reception.session import METADATA_KEY as SESSION


class Validator(Checks):
    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.ranges(), limits.sizes(), limits.counts())
        self.limits = limits
        self._tools = ToolChecks(self)
        self._sampling_fields = tuple(
            field.removeprefix("sampling.") for field in self._ranges if field.count(".") == 1
        )

    def whole(self, message: wire.InferRequest) -> int:
        """Its bytes."""
        size: int = message.ByteSize()
        if size > self.limits.request_bytes:
            raise invalid("request", f"at most {self.limits.request_bytes:,} bytes", f"{size:,} bytes")
        return size

    def number(self, message: wire.InferRequest, field: str) -> int | None:
        """None where the caller is silent."""
        if not message.HasField(field):
            return None
        value: int = getattr(message, field)
        self.in_range(field, value)
        return value

    def sampling(self, message: wire.InferRequest) -> wire.Sampling | None:
        if not message.HasField("sampling"):
            return None
        sampling = message.sampling
        for field in self._sampling_fields:
            if sampling.HasField(field):
                self.in_range(f"sampling.{field}", getattr(sampling, field))
        self._biases(sampling.logit_bias)
        kept = wire.Sampling()
        kept.CopyFrom(sampling)
        return kept

    def form(self, message: wire.InferRequest) -> wire.Structure | None:
        """Of the answer."""
        if not message.HasField("structure"):
            return None
        self.structure(message.structure)
        kept = wire.Structure()
        kept.CopyFrom(message.structure)
        return kept

    def tools(self, message: wire.InferRequest) -> tuple[tuple[wire.Tool, ...], wire.ToolChoice | None]:
        """And how free the model is to call them."""
        self._tools.tools(message.tools)
        if message.tools and not message.messages:
            raise invalid("tools", "unset unless messages are given", "tools with a prompt")
        if not message.HasField("tool_choice"):
            return _copied(message.tools), None
        self._tools.choice(message.tool_choice, message.tools)
        choice = wire.ToolChoice()
        choice.CopyFrom(message.tool_choice)
        return _copied(message.tools), choice

    def messages(self, messages: Sequence[Any]) -> None:
        """Roles, number, size, and that calls and answers of tools belong together; what is said is not looked at."""
        self.count("messages", messages)
        self._tools.conversation(messages)
        size = sum(len(text.encode()) for turn in messages for text in texts_of(turn))
        most = self._sizes["messages"]
        if size > most:
            raise invalid("messages", f"at most {most:,} bytes of content in all", f"{size:,} bytes")
        for turn in messages:
            self.role("messages.role", turn.role)

    def metadata(self, metadata: Mapping[str, str]) -> Mapping[str, str]:
        """Of what nobody reads, only the size counts."""
        if not metadata:
            return {}
        self.count("metadata", metadata)
        for key, value in metadata.items():
            if not key or not self.text("metadata.key", key).isprintable():
                raise invalid("metadata", "keys that are printable and not empty", shorten(key))
            self.text("metadata.value", value)
        named, most = metadata.get(SESSION, ""), self._sizes["session_id"]
        if len(named.encode()) > most or not named.isprintable():
            raise invalid("metadata", f"a session_id that is printable, of at most {most} bytes", shorten(named))
        return metadata

    def _biases(self, biases: Sequence[Any]) -> None:
        self.count("sampling.logit_bias", biases)
        for bias in biases:
            self.in_range("sampling.logit_bias.token", bias.token)
            self.in_range("sampling.logit_bias.bias", bias.bias)
        if len({bias.token for bias in biases}) < len(biases):
            raise invalid("sampling.logit_bias", "tokens that differ", f"{len(biases):,} biases")


def _copied(tools: Sequence[wire.Tool]) -> tuple[wire.Tool, ...]:
    return tuple(wire.Tool.FromString(tool.SerializeToString()) for tool in tools)
