"""What is installed against what is declared, pinned, licensed, and known to have been broken."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
TOOLS = frozenset({"pip", "setuptools", "wheel"})
"""Come with every environment."""
_OWN = "octet"
_NO_VERSION = Version("0")


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: Version
    requires: tuple[Requirement, ...] = ()
    licences: tuple[str, ...] = ()
    """As its metadata name them: an expression, else classifiers, else the first line of whatever it says."""


def installed() -> dict[str, Package]:
    return {package.name: package for package in map(_package, distributions()) if package.name}


def pinned(text: str) -> dict[str, Version]:
    """Raises ValueError for a line that pins nothing."""
    pins: dict[str, Version] = {}
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        name, equals, version = line.partition("==")
        if not equals:
            raise ValueError(f"{line} is no pin")
        pins[str(canonicalize_name(name))] = Version(version)
    return pins


def needed(packages: Mapping[str, Package], name: str, extras: Iterable[str]) -> set[str]:
    """Everything that a package with some of its extras asks for, here and now, at every remove."""
    found: set[str] = set()
    open_ones = [(name, extra) for extra in ("", *extras)]
    seen: set[tuple[str, str]] = set()
    while open_ones:
        current, extra = open_ones.pop()
        if (current, extra) in seen:
            continue
        seen.add((current, extra))
        found.add(current)
        for asked in packages[current].requires if current in packages else ():
            if asked.marker is None or asked.marker.evaluate({"extra": extra}):
                target = str(canonicalize_name(asked.name))
                open_ones += [(target, each) for each in ("", *asked.extras)]
    return found


def strays(packages: Mapping[str, Package], extras: Iterable[str]) -> list[str]:
    """Installed, and nobody asks for it."""
    return sorted(set(packages) - needed(packages, _OWN, extras) - TOOLS)


def unpinned(packages: Mapping[str, Package], pins: Mapping[str, Version]) -> list[str]:
    """Not pinned, or another version than the pin says; what a build adds behind a `+` is its own affair."""
    mine = (package for name, package in packages.items() if name not in TOOLS | {_OWN})
    return sorted(
        f"{package.name} {package.version}, pinned {pins.get(package.name, 'not at all')}"
        for package in mine
        if pins.get(package.name) != Version(package.version.public)
    )


def below(versions: Mapping[str, Version], floors: Mapping[str, tuple[str, str]]) -> list[str]:
    """`floors` are by name: the first version without it, and what it is."""
    return sorted(
        f"{name} {version} is below {floors[name][0]}: {floors[name][1]}"
        for name, version in versions.items()
        if name in floors and version < Version(floors[name][0])
    )


def least_declared(packages: Mapping[str, Package]) -> dict[str, Version]:
    """By name: the lowest version that our own metadata let in."""
    least: dict[str, Version] = {}
    for asked in packages[_OWN].requires:
        name = str(canonicalize_name(asked.name))
        bounds = [Version(each.version) for each in asked.specifier if each.operator in (">=", "==", "~=")]
        if name != _OWN:
            least[name] = max(bounds, default=_NO_VERSION)
    return least


def _package(found: Distribution) -> Package:
    metadata = found.metadata
    return Package(
        str(canonicalize_name(metadata["Name"] or "")),
        Version(found.version),
        tuple(Requirement(line) for line in found.requires or ()),
        _licences(metadata.get_all("License-Expression"), metadata.get_all("Classifier"), metadata.get_all("License")),
    )


def _licences(expressions: list[str] | None, classifiers: list[str] | None, said: list[str] | None) -> tuple[str, ...]:
    if expressions:
        return tuple(re.split(r" AND | OR ", expressions[0].replace("(", "").replace(")", "")))
    classified = [line.split("::")[-1].strip() for line in classifiers or () if line.startswith("License ::")]
    if classified:
        return tuple(classified)
    first = (said or [""])[0].strip().split("\n")[0].strip()
    return tuple(re.split(r" AND | OR ", first))
