"""The cluster under one seed: the production code of controllers, brokers and clients in one process, in virtual time.

The doors through which that code meets the world (time, network, disk, randomness) lead to a simulated one here. Whatever
happens in it follows from the seed.
"""
