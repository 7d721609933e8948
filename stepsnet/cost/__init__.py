"""What a network costs: blocks, layers, parameters, multiply-accumulates. By formula and by counting."""

from stepsnet.cost.count import count_cost, count_macs, count_params
from stepsnet.cost.formulas import Cost

__all__ = ["Cost", "count_cost", "count_macs", "count_params"]
