"""The digest of everything in an ensemble that decides who answers and with which parameters.

Not of what only decides how it runs (marked so in `octet.config.ensemble`): routers on different machines, with their
own addresses and paths, decide alike and say so by the same digest. The classifier has a digest of its own. Tables of
names are sorted, so that their order in the file means nothing; the order of rules does.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from octet.config.ensemble import Ensemble
from octet.config.fields import Field, fields_of
from octet.config.kinds import Mark


def digest_of_ensemble(ensemble: Ensemble) -> str:
    """sha256, hex."""
    canonical = json.dumps(_deciding(ensemble), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(canonical.encode()).hexdigest()


def _deciding(table: Any) -> dict[str, Any]:
    kind: type = type(table)
    return {
        name: _plain(field, getattr(table, name)) for name, field in fields_of(kind).items() if not field.has(Mark.RUNS)
    }


def _plain(field: Field, value: Any) -> Any:
    if field.is_table:
        return None if value is None else _deciding(value)
    if field.item is not None:
        items = [_deciding(item) for item in value]
        return {item["name"]: item for item in items} if field.has(Mark.BY_NAME) else items
    if isinstance(value, Mapping):
        return dict(value)
    return float(value) if field.kind is float else value
