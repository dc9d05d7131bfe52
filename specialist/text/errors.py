"""Why a text was refused."""


class TextTooLong(ValueError):
    """Refused before anything was computed from it."""

    def __init__(self, field: str, limit: int, got: int) -> None:
        super().__init__(f"{field} has {got} bytes, the limit is {limit}")
        self.field, self.limit, self.got = field, limit, got


class TooManyMessages(ValueError):
    def __init__(self, field: str, limit: int, got: int) -> None:
        super().__init__(f"{field} has {got} entries, the limit is {limit}")
        self.field, self.limit, self.got = field, limit, got


class NotText(ValueError):
    """A string that has no UTF-8 form: it holds half of a surrogate pair."""

    def __init__(self, field: str, index: int) -> None:
        super().__init__(f"{field} is not valid Unicode: a lone surrogate at index {index}")
        self.field, self.index = field, index


class ControlText(ValueError):
    """The vocabulary has no other way to write this text than a control token."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field} holds {text!r}, which this vocabulary can only write as a control token")
        self.field, self.text = field, text


class VocabularyRefused(ValueError):
    """The tokenizer is of a kind that cannot be streamed exactly."""


class TemplateRefused(ValueError):
    """The chat template is missing, broken, or went over a limit; or it refused the messages itself."""

    def __init__(self, why: str) -> None:
        super().__init__(f"chat template: {why}")
        self.why = why


class TemplateKilled(TemplateRefused):
    """The process that rendered it was too slow, or died."""


class NoTools(ValueError):
    """The chat template carries no calls of tools, or none that can be read here."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
