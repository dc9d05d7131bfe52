"""Why a server does not listen where it was told to."""


class BindRefused(ValueError):
    """Listening there is not safe, or not possible. The message says what to do."""
