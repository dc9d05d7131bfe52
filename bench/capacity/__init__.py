"""How many replicas a trace needs: `octet simulate` plays it through the real router, admission, scheduler and block
pool on simulated time, and looks whether the specialists keep what they promise."""
