"""How a node authenticates its peers, and itself to other nodes: from its configuration to the objects that connections use."""
