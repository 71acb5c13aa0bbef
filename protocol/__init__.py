"""The messages between processes: frames, schemas, the error table, record batches; and `rpc`, the thin asyncio shell."""
