"""Why an adapter is not served."""


class AdapterRefused(ValueError):
    """The files are not an adapter that fits this model and this replica. Nothing has changed."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class UnknownAdapter(LookupError):
    """No adapter is loaded by this name or digest."""
