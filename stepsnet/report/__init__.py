"""Tables, figures and self-contained HTML. This room draws what it is given and needs neither torch nor a network."""

from stepsnet.report.run import run_report
from stepsnet.report.stack import stack_svg, stack_text

__all__ = ["run_report", "stack_svg", "stack_text"]
