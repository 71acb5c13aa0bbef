"""The consumer. Its calls are in `consumer.py`; `fetcher.py` fetches ahead."""
