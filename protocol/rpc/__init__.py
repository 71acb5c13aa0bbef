"""The thin asyncio shell around frames: `frame_reader` (bytes to frames), `server`, and `connection` (the client side)."""
