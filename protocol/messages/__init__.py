"""Message classes: `data` (produce and fetch), `admin` (what clients ask and change), `cluster` (between nodes)."""
