"""The form that an answer must have, as a caller asks for it."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

Kind = Literal["json_object", "json_schema", "regex", "choice", "calls"]


@dataclass(frozen=True, slots=True)
class Structure:
    """Checked where a request is received: nothing here is too long or too much."""

    kind: Kind
    text: str = ""
    """The schema, or the regular expression; for calls, rules of a grammar that begins with `calls`."""
    choices: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        return len(self.text.encode()) + sum(len(choice.encode()) for choice in self.choices)

    def digest(self) -> str:
        """sha256, hex."""
        return sha256(json.dumps([self.kind, self.text, self.choices]).encode()).hexdigest()
