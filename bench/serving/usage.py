"""What a user can put right."""


class ServeMistake(ValueError):
    """An option, a file or an endpoint that cannot be used. One line."""
