"""Connections to the brokers, the cluster's metadata, and requests to the leaders of many partitions."""
