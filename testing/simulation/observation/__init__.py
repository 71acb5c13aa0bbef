"""What the simulator sees of production code, from outside: wrapped functions, probes for the invariants, coverage marks."""
