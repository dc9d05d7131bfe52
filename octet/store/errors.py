"""Why the store did not do what it was asked for."""

from octet.store.rows import Document


class BadStoreUrl(ValueError):
    """Nothing can be opened by it, today or tomorrow. Says what would be right, and nothing of a password."""


class Stale(Exception):
    """Somebody was first. Nothing was changed."""

    def __init__(self, kind: str, key: str, current: Document | None) -> None:
        version = current.version if current else 0
        super().__init__(f"{kind} {key} was changed meanwhile; its version is {version}")
        self.kind = kind
        self.key = key
        self.current = current
        """None: there is no such document."""


class StoreUnavailable(Exception):
    """The database did not answer, or not in time."""

    def __init__(self, why: str, *, certain: bool = True) -> None:
        super().__init__(why if certain else f"{why}; whether the change was made could not be found out")
        self.certain = certain
        """The change was not made. Otherwise it may have been: `on_change` will tell when the database is back."""


class Unavailable(Exception):
    """Inside: the connection is of no more use, and nothing was committed on it."""


class Unknown(Unavailable):
    """Inside: the connection was lost at the commit."""


class Refused(Exception):
    """Inside: the database does not take these values; the connection is sound."""
