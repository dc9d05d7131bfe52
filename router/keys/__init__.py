"""Who may do what here, and how much of it: keys, their limits, and what every call and route asks for."""
