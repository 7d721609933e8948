"""Plans for a budget of parameters, MACs and measured latency."""

from stepsnet.planner.planning import Budget, PlanResult, plan_for
from stepsnet.planner.subject import Subject, ZooSubject

__all__ = ["Budget", "PlanResult", "Subject", "ZooSubject", "plan_for"]
