"""Installed packages are declared, pinned, permissibly licensed and free of known vulnerabilities."""

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.security.dependencies import (
    ROOT,
    Package,
    below,
    installed,
    least_declared,
    needed,
    pinned,
    strays,
    unpinned,
)
from tests.security.floors import FLOORS
from tests.security.licences import OTHERWISE, PERMISSIVE

PINS = pinned((ROOT / "constraints.txt").read_text())
Packages = dict[str, Package]


@pytest.fixture(scope="module")
def packages() -> Packages:
    return installed()


def test_every_package_is_pinned_and_matches_its_pin(packages: Packages) -> None:
    assert (
        unpinned({name: packages[name] for name in needed(packages, "octet-serving", ("dev",)) & set(packages)}, PINS)
        == []
    )


def test_no_undeclared_package_is_installed(packages: Packages) -> None:
    assert strays(packages, ("dev",)) == []


def test_every_pin_is_needed(packages: Packages) -> None:
    assert sorted(set(PINS) - needed(packages, "octet-serving", ("dev",))) == []


def test_no_known_vulnerability_is_installed_or_permitted(packages: Packages) -> None:
    assert below({name: package.version for name, package in packages.items()}, FLOORS) == []
    assert below(PINS, FLOORS) == []
    assert below(least_declared(packages), FLOORS) == []
    assert set(FLOORS) <= set(PINS)


def test_every_licence_is_reviewed(packages: Packages) -> None:
    mine = {name: packages[name] for name in needed(packages, "octet-serving", ("dev",)) & set(packages)}
    others = {name for name, package in mine.items() if not PERMISSIVE.issuperset(package.licences)}
    assert others == set(OTHERWISE)


def test_serving_needs_no_test_dependency(packages: Packages) -> None:
    served = needed(packages, "octet-serving", ("serve", "postgres", "otlp"))
    assert served.isdisjoint(
        {"pytest", "hypothesis", "cloudpickle", "joblib", "requests", "transformers", "playwright"}
    )


def plant(name: str, version: str, *requires: str) -> Package:
    return Package(name, Version(version), tuple(map(Requirement, requires)))


INSTALLED = {
    each.name: each
    for each in (
        plant(
            "octet-serving", "1", "a>=2; extra == 'dev'", "octet-serving[more]; extra == 'dev'", "c==1; extra == 'more'"
        ),
        plant("a", "2", "b; sys_platform == 'nowhere'", "d[fast]"),
        plant("c", "1"),
        plant("d", "3", "e; extra == 'fast'"),
        plant("e", "1"),
        plant("stray", "1"),
        plant("pip", "1"),
    )
}


def test_undeclared_package_is_detected() -> None:
    assert strays(INSTALLED, ("dev",)) == ["stray"]
    assert needed(INSTALLED, "octet-serving", ("dev",)) == {"octet-serving", "a", "c", "d", "e"}
    assert needed(INSTALLED, "octet-serving", ()) == {"octet-serving"}


def test_drifted_version_is_detected() -> None:
    pins = {"a": Version("2"), "c": Version("2"), "d": Version("3")}
    troubles = unpinned(INSTALLED, pins)
    assert [line.split()[0] for line in troubles] == ["c", "e", "stray"]
    assert unpinned({"torch": plant("torch", "2.13.0+cpu")}, {"torch": Version("2.13.0")}) == []


def test_vulnerable_version_is_detected() -> None:
    floors = {"a": ("2.1", "CVE-1"), "c": ("1", "CVE-2")}
    assert below({name: each.version for name, each in INSTALLED.items()}, floors) == ["a 2 is below 2.1: CVE-1"]
    assert least_declared(INSTALLED) == {"a": Version("2"), "c": Version("1")}


def test_line_without_a_pin_is_refused() -> None:
    with pytest.raises(ValueError, match="has no pinned version"):
        pinned("a==1\nb>=2\n")
