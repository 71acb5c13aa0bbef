"""Connections to the brokers, and the metadata that the clients share."""
