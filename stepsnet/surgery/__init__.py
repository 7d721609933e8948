"""Steps for models of other libraries: `stepify` gives a residual model steps, `deepen` adds blocks to a trained one.
"""

from stepsnet.surgery.deepen import deepen, freeze_old, undeepen
from stepsnet.surgery.hosts import Host, Stage
from stepsnet.surgery.report import SurgeryReport, surgery_report
from stepsnet.surgery.saving import load, save
from stepsnet.surgery.stepify import find_host, stepify

__all__ = [
    "Host",
    "Stage",
    "SurgeryReport",
    "deepen",
    "find_host",
    "freeze_old",
    "load",
    "save",
    "stepify",
    "surgery_report",
    "undeepen",
]
