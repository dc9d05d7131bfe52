"""Other engines, each in an environment and a process of its own, that are asked the same as Octet."""
