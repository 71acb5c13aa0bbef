"""The records of `__consumer_offsets`: their types (`types.py`), and Kafka's bytes for them (`codec.py`)."""
