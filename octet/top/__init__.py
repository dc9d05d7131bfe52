"""`octet top`: the ensemble in a terminal, as it is now."""
