"""The fields of Kafka's messages, to ours and back. Each module has the APIs of one family, in `APIS`."""
