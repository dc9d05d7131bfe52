"""What a model called."""

from dataclasses import dataclass

from octet.v1 import specialist_pb2 as wire


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """As the model wrote it: JSON, unless the answer was cut off."""

    @classmethod
    def from_wire(cls, message: wire.ToolCall) -> "ToolCall":
        return cls(message.id, message.name, message.arguments)
