"""The metadata quorum: KRaft's pull-based Raft (KIP-595, KIP-630, KIP-996).

`node.py` is the state machine, `roles.py` its states, `transitions.py` their table, `node_shell.py` the shell around it, and
`quorum.py` all of it as the controller sees it.
"""
