"""What watches Octet from outside: rules, the board, and a real Prometheus."""
