"""octet.rpc."""
