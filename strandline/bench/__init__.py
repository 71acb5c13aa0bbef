"""`strandline bench`: loads on a cluster, measured at the client. Each load returns a `Figures`, whose keys are stable.

Values are random bytes of one size, generated before the measurement.
"""
