"""An assert in a module that is not a test."""


def insist(value: object) -> None:
    assert value
