"""Processes of one machine in the care of one other: started, watched, restarted, ended in order. Knows no room."""
