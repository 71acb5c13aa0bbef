"""Fault scenarios under a steady load, each with a verdict. Tests, the tutorial and `strandline chaos` run the same files."""
