"""The names that a program imports from `aiokafka.producer`."""

from strandline.client.compat.aiokafka.producer import *  # noqa: F403
from strandline.client.compat.aiokafka.producer import __all__ as __all__
