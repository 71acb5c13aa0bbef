"""The metadata quorum: KRaft's pull-based Raft (KIP-595, KIP-630, KIP-996).

`node.py` is the state machine, `roles.py` its states, `transitions.py` their table, `quorum.py` the shell around it.
"""
