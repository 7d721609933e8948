"""The paper's tables beside our numbers."""

from stepsnet.research.paper.reproduce import Comparison, reproduce
from stepsnet.research.paper.tables import TABLES, PaperTable, Row, get_tables

__all__ = ["TABLES", "Comparison", "PaperTable", "Row", "get_tables", "reproduce"]
