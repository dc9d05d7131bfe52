"""An assert of a module that is no test itself."""


def insist(value: object) -> None:
    assert value
