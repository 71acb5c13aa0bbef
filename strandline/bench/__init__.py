"""`strandline bench`: loads on a cluster, measured from the client. Each load returns a `Figures`, whose keys are stable.

Values are random-looking bytes of one size, made once; what is measured is the client and the cluster, not the making.
"""
