"""`strandline bench`: loads on a cluster, measured at the client. Each load returns a `Figures`, whose keys are stable.

All values of a load have one size, and are generated before the measurement: random bytes, or random words for a codec.
"""
