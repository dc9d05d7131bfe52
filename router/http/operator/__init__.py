"""What an operator may see and change, over HTTP."""
