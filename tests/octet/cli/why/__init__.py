"""`octet why`: the explanation of a request."""
