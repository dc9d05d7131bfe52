"""Why a model was refused, and what to do about it."""


class ModelRefused(ValueError):
    """The files are not a model that can be served here. The message says what is wrong and what to do."""
