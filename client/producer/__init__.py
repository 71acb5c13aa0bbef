"""The producer: `producer.py` has its calls, `sender.py` sends batches to the leaders."""
