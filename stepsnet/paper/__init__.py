"""The paper's tables, and what reprints them beside our numbers."""

from stepsnet.paper.reproduce import Comparison, reproduce
from stepsnet.paper.rows import Row, Table
from stepsnet.paper.tables import TABLES, get_tables

__all__ = ["TABLES", "Comparison", "Row", "Table", "get_tables", "reproduce"]
