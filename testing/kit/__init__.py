"""A whole cluster in a test: real replication and elections, faults as calls, waits instead of sleeps, oracles.

    cluster.py        `Cluster`, the object that tests use         threaded.py   `ThreadedCluster`, for tests without asyncio
    conditions.py     conditions that a test can wait for          waiting.py    `until`
    oracles.py        checks of a cluster's records and logs       recording.py  clients that write a history
    report.py         a summary of the cluster for a failed test   view.py       snapshot of a cluster's state

    nodes.py          interface of nodes of every kind             hosted.py     in the test's process; spawned.py  processes
    inside.py         reads the state of nodes in this process     simulated/    nodes on virtual time
    process_loop.py   one node's event loop                        network.py    links and rules; wires.py, streams.py
    disks.py          one node's disk, slow or full                lines.py      one node's log lines

docs/testing.md is the guide. The pytest plugin is `strandline.testing.plugin`.
"""
