"""Other engines, each in its own environment and process, that receive the same requests as Octet."""
