"""The cluster under one seed: the production code of controllers, brokers and clients in one process, on virtual time.

    kernel/         virtual time, event loops, network, disks, and the trace of what happens
    cluster/        the servers and clients that run on it
    nemesis/        the faults, and the budget that bounds them
    observation/    how the simulator sees what production code does: probes, coverage marks
    invariants/     the judges: what must hold after every step
    scenarios/      directed stories, and their golden transcripts
    runs/           one seed from its options to its verdict
    story/          a run in words and pictures
    campaign/       many runs: sweeps, mutations, shrinking
    guards/         removes one condition of the product at a time: which instrument detects that?

Production code reaches the world through four doors only (time, network, disk, randomness). Here they lead to simulated ones, so
the seed decides everything that happens.
"""
