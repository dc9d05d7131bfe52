"""What differs between two ensembles, and whether a running router can take it over."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from octet.config.ensemble import Ensemble
from octet.config.fields import fields_of
from octet.config.kinds import Mark

_ROUTING_TEXT = ("describe", "examples")
"""Of a specialist: what the classifier is made of where none was trained."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Dotted names, such as `rules`, `specialists.sql.system`, `router.port`."""

    reloadable: tuple[str, ...]
    needs_restart: tuple[str, ...]
    """With any of these, nothing of the new configuration is taken over."""

    def __bool__(self) -> bool:
        return bool(self.reloadable or self.needs_restart)


def changes(old: Ensemble, new: Ensemble) -> Changes:
    """The file's name is no difference; the order of tables of names is none either."""
    trained = old.classifier.path is not None
    found = list(_in_table(old, new, "", live=False, trained=trained))
    return Changes(
        reloadable=tuple(name for name, live in found if live),
        needs_restart=tuple(name for name, live in found if not live),
    )


def _in_table(old: Any, new: Any, where: str, live: bool, trained: bool) -> Iterator[tuple[str, bool]]:
    kind: type = type(old)
    for name, field in fields_of(kind).items():
        before, after = getattr(old, name), getattr(new, name)
        if before == after or (kind is Ensemble and name == "source"):
            continue
        here = f"{where}{name}"
        alive = live or field.has(Mark.LIVE) or (trained and name in _ROUTING_TEXT)
        if field.is_table and not field.optional:
            yield from _in_table(before, after, f"{here}.", alive, trained)
        elif field.has(Mark.BY_NAME):
            yield from _in_names(before, after, f"{here}.", alive, trained)
        else:
            yield here, alive


def _in_names(
    old: tuple[Any, ...], new: tuple[Any, ...], where: str, live: bool, trained: bool
) -> Iterator[tuple[str, bool]]:
    """Tables that stand under names; one that comes or goes is told by its name alone."""
    before, after = {item.name: item for item in old}, {item.name: item for item in new}
    for name in before | after:
        if name not in before or name not in after:
            yield f"{where}{name}", live
        else:
            yield from _in_table(before[name], after[name], f"{where}{name}.", live, trained)
