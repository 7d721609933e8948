"""Comes before the test modules, so that torchvision, which transformers imports where it is installed, has been made importable."""

import stepsnet.integrations.transformers  # noqa: F401
