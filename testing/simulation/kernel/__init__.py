"""What a simulated process runs on: virtual time, event loops, network, disks, and the trace of all that happens."""
