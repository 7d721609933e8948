"""Plans for a budget of parameters, MACs and measured latency."""

from stepsnet.planner.planning import PlanResult, plan_for
from stepsnet.planner.subject import Subject, ZooSubject

__all__ = ["PlanResult", "Subject", "ZooSubject", "plan_for"]
