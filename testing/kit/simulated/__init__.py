"""`@simulated`: a test as with the fixture `cluster`, played on virtual time under faults, once per seed.

    decorator.py      what a test has around it: seeds, replay, the canary      run.py       one seed, from start to outcome
    cluster.py        the kit's `Cluster` on virtual time                       nodes.py     its nodes, network and disks
    weather.py        the faults that a seed draws                              telling.py   what a failure says
    surroundings.py   time and chance as the test sees them                     leap.py      long sleeps take no time

The simulation itself is `strandline.testing.simulation`; docs/testing.md is the guide.
"""
