"""`octet top`: what it shows, in a real terminal and without one."""
