"""The structured answer of `steps.SCHEMA` as a pydantic model, for clients that parse answers with one."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    town: Literal["Oslo", "Rome"]
    rain: bool


def weather(town: Literal["Oslo", "Rome"], rain: bool) -> str:
    """The weather in a town."""
    raise NotImplementedError(f"{town} {rain}: a tool of which the model only sees the signature")
