"""The heart: what a Step by Step Network is (Eq. 4-6 of arXiv 2511.14329)."""

from stepsnet.macro.joins import MatchedJoin, PlainJoin
from stepsnet.macro.network import ReverseStepsNet, StepsNet
from stepsnet.macro.plan import StepPlan
from stepsnet.macro.stack import Stack, build_network

__all__ = ["MatchedJoin", "PlainJoin", "ReverseStepsNet", "Stack", "StepPlan", "StepsNet", "build_network"]
