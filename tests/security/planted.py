"""A helper with an assert, in a module that is not a test file."""


def insist(value: object) -> None:
    assert value
