"""What a node keeps on disk: logs, the data directory, checkpoints, and the file system beneath them."""
