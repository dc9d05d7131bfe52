"""One YAML file into frozen dataclasses: the ensemble as its owner describes it."""
