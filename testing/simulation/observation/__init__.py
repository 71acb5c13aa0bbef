"""How the simulator observes production code from outside: wrapped functions, probes for the invariants, coverage marks."""
