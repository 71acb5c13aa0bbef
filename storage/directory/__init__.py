"""A data directory: the lock, the identity in `meta.properties`, the logs in it, and stray logs."""
