"""The names that a program imports from `aiokafka.consumer`."""

from strandline.client.compat.aiokafka.consumer import *  # noqa: F403
from strandline.client.compat.aiokafka.consumer import __all__ as __all__
