"""What can be measured: a file a command, each with `add`."""
