"""The ensemble that is served when no file is named: eight C++ specialists over the demo model."""

from functools import cache
from importlib.resources import files

from octet.config.ensemble import Ensemble
from octet.config.read import parse_ensemble


def default_text() -> str:
    return (files("octet.config") / "default.yaml").read_text(encoding="utf-8")


@cache
def default_ensemble() -> Ensemble:
    return parse_ensemble(default_text(), source=None)
