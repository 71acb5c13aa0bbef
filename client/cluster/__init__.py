"""Connections to the brokers, the metadata that clients share, and questions to the leaders of many partitions."""
