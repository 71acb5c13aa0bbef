"""The commands by name: the module that defines each, and one line of help. The list is printed without importing them."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up", "Run a local cluster of real processes until Ctrl-C."),
    "node": ("node", "List, kill, stop, pause, resume or start a node of a local cluster."),
    "demo": ("demo", "Send real data through a cluster, kill a leader and a controller, and check every record."),
    "chaos": ("chaos", "Run a fault scenario under load, with a verdict."),
    "topic": ("topic", "Create, list, describe, alter, analyze, trim and delete topics."),
    "produce": ("produce", "Send lines of standard input as records."),
    "consume": ("consume", "Print the records of a topic."),
    "cat": ("cat", "Print the records of a topic as JSON lines, or send JSON lines."),
    "cluster": ("cluster", "Describe the brokers and the active controller; unregister a broker."),
    "health": ("health", "Check whether a node or the whole cluster is healthy."),
    "top": ("top", "Follow a cluster on the whole screen: brokers, partitions, rates, lag."),
    "doctor": ("doctor", "Look for what is wrong with a cluster, and say what to do."),
    "quorum": ("quorum", "Describe the controllers' quorum."),
    "reassign": ("reassign", "Move partitions to other brokers, or change their number of replicas."),
    "elect": ("elect", "Elect the preferred leader of a partition, or of all; or any leader, uncleanly."),
    "recover": ("recover", "Show partitions without a leader and what their replicas have; elect one by hand."),
    "features": ("features", "Describe and upgrade the level of the cluster's metadata."),
    "log-dirs": ("log_dirs", "Show the space that logs take on the brokers' disks, and move replicas to other disks."),
    "log": ("log", "Print the content of a log's files, or verify a data directory."),
    "pipeline": ("pipeline", "Run jobs on Spark: lake, audit, snapshots of the last values, replay, simulations."),
    "bench": ("bench", "Measure produce, consume, latency and fail-over."),
    "simulate": ("simulate", "Run a cluster from one seed, with simulated time, network, disks and faults."),
    "group": ("group", "List and describe consumer groups, show their lag, move their offsets."),
    "transaction": ("transaction", "List and describe transactions; find and end those that hang."),
    "acl": ("acl", "List, add, remove and check access rules."),
    "user": ("user", "List users, add and remove them, change their passwords."),
    "quota": ("quota", "List, set and remove quotas of users, client ids and addresses."),
    "context": ("context", "Name clusters, and choose the one that commands talk to."),
    "config": ("config", "Show, change and compare configuration; list the keys."),
    "completion": ("completion", "Print the completion script of bash, zsh or fish."),
    "broker": ("broker", "Run one broker in this process; drain, undrain or unregister a broker."),
    "controller": ("run", "Run one controller in this process."),
}
"""Command -> (its module in this package, one line of help)."""
