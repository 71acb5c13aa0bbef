"""A whole cluster in a test: real replication and elections, faults as calls, waits instead of sleeps, oracles.

    cluster.py        `Cluster`: what a test has in its hands      threaded.py   the same, for tests without asyncio
    conditions.py     what a test can wait for                     waiting.py    `until`
    oracles.py        what a test can assert                       recording.py  clients that write a history
    report.py         the cluster on half a page                   view.py       what is seen of it

    nodes.py          what can be done to nodes                    hosted.py     in the test's process; spawned.py  processes
    inside.py         looking into those of this process           simulated/    on virtual time
    process_loop.py   one node's share of the event loop           network.py    links and rules; wires.py, streams.py
    disks.py          one node's disk, slow or full                lines.py      one node's log lines

docs/testing.md is the guide. pytest's side is `strandline.testing.plugin`.
"""
