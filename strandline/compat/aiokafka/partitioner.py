"""The names that a program imports from `aiokafka.partitioner`."""

from strandline.client.compat.aiokafka.partitioner import *  # noqa: F403
from strandline.client.compat.aiokafka.partitioner import __all__ as __all__
