"""A disk in memory that loses on a power cut what a real disk would lose. For the simulator and for tests."""
