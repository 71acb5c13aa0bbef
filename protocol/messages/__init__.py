"""Message classes: `data` (produce and fetch), `admin` (requests of clients about the cluster), `cluster` (between nodes)."""
