"""What a Step by Step Network is (arXiv 2511.14329, Eq. 4 to 6): plans, the two macro networks, and joins."""

from stepsnet.macro.joins import Join, JoinDesign, MatchedJoin, PlainJoin
from stepsnet.macro.network import ReverseStepsNet, Stack, StepsNet
from stepsnet.macro.plan import StepPlan

__all__ = ["Join", "JoinDesign", "MatchedJoin", "PlainJoin", "ReverseStepsNet", "Stack", "StepPlan", "StepsNet"]
