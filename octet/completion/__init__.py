"""Shell completion, from the commands as they are."""
