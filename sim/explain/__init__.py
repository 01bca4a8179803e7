"""What happened to the blocks, and why: a run told event by event."""

from sim.explain.history import History, Loss
from sim.explain.labels import Labels
from sim.explain.observer import Enough, Observer
from sim.explain.story import Moment, Slot, Story

__all__ = ["Enough", "History", "Labels", "Loss", "Moment", "Observer", "Slot", "Story"]
