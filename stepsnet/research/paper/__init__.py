"""The paper's tables, and what reprints them beside our numbers."""

from stepsnet.research.paper.reproduce import Comparison, reproduce
from stepsnet.research.paper.rows import Row, Table
from stepsnet.research.paper.tables import TABLES, get_tables

__all__ = ["TABLES", "Comparison", "Row", "Table", "get_tables", "reproduce"]
