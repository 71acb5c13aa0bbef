"""Record batches, Kafka's v2 format: `batch` (the header), `builder` and `reader` (the records), `control` records."""
