"""What happens to callers while processes are killed, stopped, restarted and reconfigured."""
