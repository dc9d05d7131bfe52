"""Compares installed packages with declarations, pins, licences and known vulnerabilities."""

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
"""Packages that are part of every environment."""
_OWN = "octet-serving"
_NO_VERSION = Version("0")


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: Version
    requires: tuple[Requirement, ...] = ()
    licences: tuple[str, ...] = ()
    """The licence expression of the metadata. If there is no expression, the licence classifiers or the first line of
    the licence."""


def installed() -> dict[str, Package]:
    return {package.name: package for package in map(_package, distributions()) if package.name}


def pinned(text: str) -> dict[str, Version]:
    """Return the pinned version of each package. Raises ValueError for a line without a pin."""
    pins: dict[str, Version] = {}
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        name, equals, version = line.partition("==")
        if not equals:
            raise ValueError(f"{line} has no pinned version")
        pins[str(canonicalize_name(name))] = Version(version)
    return pins


def needed(packages: Mapping[str, Package], name: str, extras: Iterable[str]) -> set[str]:
    """Return the package and all its transitive requirements, with the given extras, in this environment."""
    found: set[str] = set()
    open_ones = [(name, extra) for extra in ("", *extras)]
    seen: set[tuple[str, str]] = set()
    while open_ones:
        current, extra = open_ones.pop()
        if (current, extra) in seen:
            continue
        seen.add((current, extra))
        found.add(current)
        for requested in packages[current].requires if current in packages else ():
            if requested.marker is None or requested.marker.evaluate({"extra": extra}):
                target = str(canonicalize_name(requested.name))
                open_ones += [(target, each) for each in ("", *requested.extras)]
    return found


def strays(packages: Mapping[str, Package], extras: Iterable[str]) -> list[str]:
    """Return installed packages that no declared dependency requires."""
    return sorted(set(packages) - needed(packages, _OWN, extras) - TOOLS)


def unpinned(packages: Mapping[str, Package], pins: Mapping[str, Version]) -> list[str]:
    """Return packages that are not pinned, or whose version differs from the pin. The local part of a version, after
    `+`, is ignored."""
    mine = (package for name, package in packages.items() if name not in TOOLS | {_OWN})
    return sorted(
        f"{package.name} {package.version}, pinned {pins.get(package.name, 'not at all')}"
        for package in mine
        if pins.get(package.name) != Version(package.version.public)
    )


def below(versions: Mapping[str, Version], floors: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return packages older than their floor. `floors` maps a package's name to the first fixed version and the
    vulnerability."""
    return sorted(
        f"{name} {version} is below {floors[name][0]}: {floors[name][1]}"
        for name, version in versions.items()
        if name in floors and version < Version(floors[name][0])
    )


def least_declared(packages: Mapping[str, Package]) -> dict[str, Version]:
    """Return, by package name, the lowest version that Octet's own metadata permits."""
    least: dict[str, Version] = {}
    for requested in packages[_OWN].requires:
        name = str(canonicalize_name(requested.name))
        bounds = [Version(each.version) for each in requested.specifier if each.operator in (">=", "==", "~=")]
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
