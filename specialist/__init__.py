"""One replica of one specialist: which sequences run now, and the engine that runs them."""
