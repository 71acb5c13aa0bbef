"""The names that a program imports from `aiokafka.errors`."""

from strandline.client.compat.aiokafka.errors import *  # noqa: F403
from strandline.client.compat.aiokafka.errors import __all__ as __all__
