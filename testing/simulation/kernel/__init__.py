"""The environment of simulated processes: virtual time, event loops, network, disks, and the trace of all events."""
