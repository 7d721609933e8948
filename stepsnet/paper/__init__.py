"""The paper's tables, and what reprints them beside our numbers."""

from stepsnet.paper.reproduce import Comparison, reproduce
from stepsnet.paper.tables import TABLES, Row, Table, get_table

__all__ = ["TABLES", "Comparison", "Row", "Table", "get_table", "reproduce"]
