"""Steps for models of other libraries: `stepify` gives a residual model steps, `deepen` adds blocks to a trained one."""

from stepsnet.surgery.hosts import Host, Stage
from stepsnet.surgery.report import SurgeryReport, surgery_report
from stepsnet.surgery.stepify import find_host, stepify

__all__ = ["Host", "Stage", "SurgeryReport", "find_host", "stepify", "surgery_report"]
