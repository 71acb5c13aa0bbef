"""Security on a broker: the answers about it, and who may ask for what."""
