"""`python -m stepsnet …` is `stepsnet …`; torchrun starts it this way."""

from __future__ import annotations

import sys

from stepsnet.cli.main import main

sys.exit(main())
