"""The values of the rows about compression: JSON objects as a service might log them, about 230 bytes each."""

from __future__ import annotations

import json
import random

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def json_values(count: int = 20_000, seed: int = 1) -> list[bytes]:
    source = random.Random(seed)
    return [
        json.dumps(
            {
                "timestamp": f"2026-11-23T15:{source.randrange(60):02}:{source.randrange(60):02}.{source.randrange(1000):03}Z",
                "level": source.choice(["INFO", "INFO", "INFO", "WARN", "ERROR"]),
                "service": source.choice(["checkout", "search", "payment", "catalogue", "basket"]),
                "user_id": source.randrange(10**8),
                "session": f"{source.getrandbits(64):016x}",
                "path": f"/api/v1/items/{source.randrange(10**6)}",
                "status": source.choice([200, 200, 200, 204, 301, 404, 500]),
                "took_ms": round(source.expovariate(0.02), 2),
            }
        ).encode()
        for _ in range(count)
    ]
