"""`octet.v1.Operator`: the state that operators see and change at run time."""
