"""The follower's side of replication: fetchers that copy from the partitions' leaders."""
