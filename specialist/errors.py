"""Why a request was refused at the door. Each names the limit it met."""


class Refused(ValueError):
    """The request can never be served as it is; sending it again will not help."""


class InvalidRequest(Refused):
    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field


class NeverFits(Refused):
    def __init__(self, num_blocks: int, capacity: int, block_size: int) -> None:
        super().__init__(
            f"the prompt and one step need {num_blocks} blocks of {block_size} tokens; the whole pool has {capacity}"
        )
        self.num_blocks = num_blocks
        self.capacity = capacity


class LaneMismatch(Refused):
    def __init__(self, differences: list[str]) -> None:
        super().__init__("this replica serves another lane: " + "; ".join(differences))
        self.differences = differences
