"""`import stepsnet.transformers` registers the models with the transformers library. See integrations/transformers."""

from stepsnet.integrations.transformers import *  # noqa: F403
from stepsnet.integrations.transformers import __all__  # noqa: F401
