"""What travels: frames, message schemas, the error table, record batches; and `rpc`, the thin asyncio shell."""
