"""What a machine remembers, as it is kept: a value for every field, by its name."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_KeptT = TypeVar("_KeptT", bound="DataclassInstance")


def kept(kind: type[_KeptT], body: Mapping[str, Any], called: str) -> _KeptT:
    """Raises ValueError for a body that lacks one of the fields; others are passed over."""
    try:
        return kind(**{field.name: body[field.name] for field in fields(kind)})
    except KeyError as missing:
        raise ValueError(f"{called} lacks {missing}") from None
