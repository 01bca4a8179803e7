"""A report: what runs show, in plain words, pictures and tables, as one page."""

from sim.reporting.build import Extras, build
from sim.reporting.content import Report
from sim.reporting.render import render

__all__ = ["Extras", "Report", "build", "render"]
