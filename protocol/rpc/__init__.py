"""The thin asyncio shell around frames: `frame_reader` (pure: bytes to frames), `server`, `connection` (the asking side)."""
