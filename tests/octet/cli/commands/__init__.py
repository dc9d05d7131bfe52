"""All commands together: what every one of them has."""
