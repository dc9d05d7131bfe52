"""What is installed is what is declared and pinned, may be used, and is none of what is known to be broken."""

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


def test_everything_is_pinned_and_is_what_the_pin_says(packages: Packages) -> None:
    assert unpinned({name: packages[name] for name in needed(packages, "octet", ("dev",)) & set(packages)}, PINS) == []


def test_nothing_is_installed_that_nobody_asks_for(packages: Packages) -> None:
    assert strays(packages, ("dev",)) == []


def test_every_pin_is_of_something_that_is_needed(packages: Packages) -> None:
    assert sorted(set(PINS) - needed(packages, "octet", ("dev",))) == []


def test_no_hole_that_we_know_of_is_installed_or_let_in(packages: Packages) -> None:
    assert below({name: package.version for name, package in packages.items()}, FLOORS) == []
    assert below(PINS, FLOORS) == []
    assert below(least_declared(packages), FLOORS) == []
    assert set(FLOORS) <= set(PINS)


def test_every_licence_was_looked_at(packages: Packages) -> None:
    mine = {name: packages[name] for name in needed(packages, "octet", ("dev",)) & set(packages)}
    others = {name for name, package in mine.items() if not PERMISSIVE.issuperset(package.licences)}
    assert others == set(OTHERWISE)


def test_what_serves_takes_nothing_from_what_tests(packages: Packages) -> None:
    served = needed(packages, "octet", ("serve", "postgres", "otlp"))
    assert served.isdisjoint(
        {"pytest", "hypothesis", "cloudpickle", "joblib", "requests", "transformers", "playwright"}
    )


def plant(name: str, version: str, *requires: str) -> Package:
    return Package(name, Version(version), tuple(map(Requirement, requires)))


HOUSE = {
    each.name: each
    for each in (
        plant("octet", "1", "a>=2; extra == 'dev'", "octet[more]; extra == 'dev'", "c==1; extra == 'more'"),
        plant("a", "2", "b; sys_platform == 'nowhere'", "d[fast]"),
        plant("c", "1"),
        plant("d", "3", "e; extra == 'fast'"),
        plant("e", "1"),
        plant("stray", "1"),
        plant("pip", "1"),
    )
}


def test_a_stray_is_noticed() -> None:
    assert strays(HOUSE, ("dev",)) == ["stray"]
    assert needed(HOUSE, "octet", ("dev",)) == {"octet", "a", "c", "d", "e"}
    assert needed(HOUSE, "octet", ()) == {"octet"}


def test_a_version_that_drifted_is_noticed() -> None:
    pins = {"a": Version("2"), "c": Version("2"), "d": Version("3")}
    troubles = unpinned(HOUSE, pins)
    assert [line.split()[0] for line in troubles] == ["c", "e", "stray"]
    assert unpinned({"torch": plant("torch", "2.13.0+cpu")}, {"torch": Version("2.13.0")}) == []


def test_a_version_with_a_hole_is_noticed() -> None:
    floors = {"a": ("2.1", "CVE-1"), "c": ("1", "CVE-2")}
    assert below({name: each.version for name, each in HOUSE.items()}, floors) == ["a 2 is below 2.1: CVE-1"]
    assert least_declared(HOUSE) == {"a": Version("2"), "c": Version("1")}


def test_a_line_that_pins_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="is no pin"):
        pinned("a==1\nb>=2\n")
