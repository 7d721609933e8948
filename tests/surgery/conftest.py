"""Makes torchvision importable, which timm and parts of transformers import, before the test modules are read."""

from stepsnet.optional.torchvision import import_torchvision

import_torchvision()
