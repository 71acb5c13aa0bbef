"""`@simulated`: plays a test that takes a `cluster` on virtual time and under faults, once per seed.

    decorator.py      the decorator: seeds, replay, a second run as a check     run.py       one seed, from start to outcome
    cluster.py        the kit's `Cluster` on virtual time                       nodes.py     its nodes, network and disks
    weather.py        the faults that a seed draws                              telling.py   the text of a failure
    surroundings.py   virtual time and seeded randomness for the test           leap.py      skips the time of long sleeps

The simulation itself is `strandline.testing.simulation`; docs/testing.md is the guide.
"""
