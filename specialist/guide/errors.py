"""Why a structure is not followed."""


class GrammarRefused(ValueError):
    """Names what it must be, and what is wrong with it."""

    def __init__(self, limit: str, value: str) -> None:
        super().__init__(f"must be {limit}, got {value}")
        self.limit = limit
        self.value = value
