"""Serving Fetch and its sessions (KIP-227), ListOffsets and OffsetForLeaderEpoch."""
