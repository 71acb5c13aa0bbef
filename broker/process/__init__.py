"""The broker as a process: start, registration, metadata, and shutdown."""
