"""Other clients' interfaces on top of this one: `strandline.compat.aiokafka`, `strandline.compat.faststream`."""
