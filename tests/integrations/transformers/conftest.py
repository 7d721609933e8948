"""Imported before the test modules, so that torchvision is importable when transformers imports it."""

import stepsnet.integrations.transformers  # noqa: F401
