"""Single values from outside, checked against the table of limits. Every method raises Refusal: field, limit, value."""

import re
from collections.abc import Sequence
from typing import Any

from octet.rpc.refusal import invalid, shorten
from octet.v1 import inference_pb2 as wire
from router.reception.limits import Limits

_NAME = re.compile(r"[a-z0-9._-]+")
_ROLE = re.compile(r"[a-z_]+")


class Validator:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._ranges = limits.ranges()
        self._sizes = limits.sizes()
        self._counts = limits.counts()
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
        self._in_range(field, value)
        return value

    def sampling(self, message: wire.InferRequest) -> wire.Sampling | None:
        if not message.HasField("sampling"):
            return None
        sampling = message.sampling
        for field in self._sampling_fields:
            if sampling.HasField(field):
                self._in_range(f"sampling.{field}", getattr(sampling, field))
        self._biases(sampling.logit_bias)
        kept = wire.Sampling()
        kept.CopyFrom(sampling)
        return kept

    def text(self, field: str, text: str) -> str:
        if text:
            self.size(field, text.encode())
        return text

    def size(self, field: str, raw: bytes) -> bytes:
        most = self._sizes[field]
        if len(raw) > most:
            raise invalid(field, f"at most {most:,} bytes", f"{len(raw):,} bytes")
        return raw

    def identifier(self, field: str, text: str) -> str:
        """It is written to logs: nothing in it may look like another line."""
        if not text:
            return text
        self.text(field, text)
        if not text.isprintable():
            raise invalid(field, "printable", shorten(text))
        return text

    def name(self, field: str, name: str) -> str:
        self.text(field, name)
        if not _NAME.fullmatch(name):
            raise invalid(field, "lowercase letters, digits, dots, dashes and underscores", shorten(name))
        return name

    def names(self, field: str, names: Sequence[str]) -> tuple[str, ...]:
        if not names:
            return ()
        self._count(field, names)
        if len(set(names)) < len(names):
            raise invalid(field, "names that differ", shorten(", ".join(names)))
        return tuple(self.name(field, name) for name in names)

    def stops(self, stops: Sequence[str]) -> tuple[str, ...]:
        self._count("stop", stops)
        for stop in stops:
            if not self.text("stop", stop):
                raise invalid("stop", "not empty", "''")
        return tuple(stops)

    def messages(self, messages: Sequence[Any]) -> None:
        """Roles, number and size; what they say is not looked at."""
        self._count("messages", messages)
        size = sum(len(turn.content.encode()) for turn in messages)
        most = self._sizes["messages"]
        if size > most:
            raise invalid("messages", f"at most {most:,} bytes of content in all", f"{size:,} bytes")
        for turn in messages:
            self.text("messages.role", turn.role)
            if not _ROLE.fullmatch(turn.role):
                raise invalid("messages.role", "lowercase letters and underscores", shorten(turn.role))

    def _biases(self, biases: Sequence[Any]) -> None:
        self._count("sampling.logit_bias", biases)
        for bias in biases:
            self._in_range("sampling.logit_bias.token", bias.token)
            self._in_range("sampling.logit_bias.bias", bias.bias)
        if len({bias.token for bias in biases}) < len(biases):
            raise invalid("sampling.logit_bias", "tokens that differ", f"{len(biases):,} biases")

    def _in_range(self, field: str, value: float) -> None:
        allowed = self._ranges[field]
        if value not in allowed:
            raise invalid(field, str(allowed), str(value))

    def _count(self, field: str, values: Sequence[object]) -> None:
        most = self._counts[field]
        if len(values) > most:
            raise invalid(field, f"at most {most:,} of them", f"{len(values):,}")
