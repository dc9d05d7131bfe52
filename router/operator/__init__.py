"""`octet.v1.Operator`: what an operator may see and change while everything serves."""
