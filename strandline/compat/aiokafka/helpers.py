"""The names that a program imports from `aiokafka.helpers`."""

from strandline.client.compat.aiokafka.helpers import *  # noqa: F403
from strandline.client.compat.aiokafka.helpers import __all__ as __all__
