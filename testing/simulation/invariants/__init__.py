"""What must hold after every event of a simulated run, by the numbers of its invariants: I1, I2, ..."""
