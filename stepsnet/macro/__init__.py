"""The heart: what a Step by Step Network is (Eq. 4-6 of arXiv 2511.14329)."""

from stepsnet.macro.build import build_network
from stepsnet.macro.joins import Join, JoinDesign, MatchedJoin, PlainJoin
from stepsnet.macro.network import ReverseStepsNet, StepsNet
from stepsnet.macro.plan import StepPlan
from stepsnet.macro.stack import Stack

__all__ = ["Join", "JoinDesign", "MatchedJoin", "PlainJoin", "ReverseStepsNet", "Stack", "StepPlan", "StepsNet", "build_network"]
