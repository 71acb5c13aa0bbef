"""The names of features. A module of its own, so that the command line need not load the messages for a name."""

METADATA_VERSION = "metadata.version"
"""The feature whose level is that of the metadata records (Kafka's name, KIP-778)."""
