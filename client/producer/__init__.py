"""The producer. Its calls are in `producer.py`; `sender.py` sends batches to the leaders."""
