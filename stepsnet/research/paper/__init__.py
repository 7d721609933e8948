"""The paper's tables beside our numbers."""

from stepsnet.research.paper.reproduce import Comparison, reproduce
from stepsnet.research.paper.tables import TABLES, PaperRow, PaperTable, get_tables

__all__ = ["TABLES", "Comparison", "PaperRow", "PaperTable", "get_tables", "reproduce"]
