"""Many runs: sweeps on all cores, hunts for removed guards, shrinking, and the check that a seed is the same run each time."""
