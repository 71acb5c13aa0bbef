"""Message classes: `data` (produce and fetch), `groups`, `transactions`, `admin` (requests of clients about the cluster),
`security`, and `cluster` (between nodes)."""
