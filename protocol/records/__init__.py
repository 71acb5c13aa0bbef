"""Record batches, Kafka's v2 format: `batch` (the header), `builder`, `reader` and `check` (the records), `control` records,
and the `marker` that ends a transaction."""
