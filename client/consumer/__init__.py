"""The consumer: `consumer.py` has its calls, `fetcher.py` fetches ahead."""
