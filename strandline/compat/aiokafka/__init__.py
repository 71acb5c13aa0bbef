"""The names that a program imports from `aiokafka`."""

from strandline.client.compat.aiokafka import *  # noqa: F403
from strandline.client.compat.aiokafka import __all__ as __all__
