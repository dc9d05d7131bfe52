"""Runs the processes of one machine under one supervisor: starts, watches, restarts and stops them in order."""
