"""One HTML file that says what a plan does: figures before, predicted and measured, the chart, the actions.

figures.py   what a report is made of
chart.py     HBM over the step, as SVG
page.py      the page
"""

from hyperopt.report.figures import Case, Measurement
from hyperopt.report.page import page

__all__ = ["Case", "Measurement", "page"]
