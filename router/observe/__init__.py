"""How requests fare, told to whoever wants to know."""
