"""`python -m octet.client.record_stubs`: writes records.pyi, the types of the records that are made from messages."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

from octet.client import records
from octet.client.wire_record import WireRecord

_HEAD = '''"""Written by `make proto` from the messages; see records.py and proto/octet/v1."""

from octet.client.receipts import Receipt
from octet.client.wire_record import WireRecord
'''


def write_stubs() -> str:
    made = [each for each in vars(records).values() if getattr(each, "__module__", "") == records.__name__]
    return "\n\n".join([_HEAD.rstrip(), *("\n".join(_class_lines(each)) for each in made)]) + "\n"


def _class_lines(record: type[WireRecord]) -> Iterator[str]:
    yield f"class {record.__name__}(WireRecord):"
    yield from (f"    {each.name}: {_type_name(each.type)}" for each in fields(record))


def _type_name(annotation: object) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    item, other = get_args(annotation)
    return f"tuple[{_type_name(item)}, ...]" if other is ... else f"{_type_name(item)} | None"


if __name__ == "__main__":
    Path(records.__file__).with_suffix(".pyi").write_text(write_stubs(), encoding="utf-8")
