"""`octet jobs`: requests that nobody need wait for."""
