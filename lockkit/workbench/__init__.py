"""The notebooks' controls and pictures. They need ipywidgets; the exports need nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockkit.workbench.charts import Charts as Charts
    from lockkit.workbench.console.console import Console as Console
    from lockkit.workbench.contest import Contest as Contest
    from lockkit.workbench.export import export_html as export_html
    from lockkit.workbench.panels import Workbench as Workbench
    from lockkit.workbench.predict import Predict as Predict
    from lockkit.workbench.providers import Providers as Providers
    from lockkit.workbench.seeds.panel import Sweep as Sweep
    from lockkit.workbench.seeds.rerun import Rerun as Rerun
    from lockkit.workbench.stage.plays import PatternSteps as PatternSteps
    from lockkit.workbench.stage.stepper import PatternStepper as PatternStepper
    from lockkit.workbench.stage.stepper import Stepper as Stepper
    from lockkit.workbench.stage.steps import Steps as Steps
    from lockkit.workbench.store_probe import StoreProbe as StoreProbe

_ROOM = {
    "Charts": "charts", "Console": "console.console", "Contest": "contest",
    "PatternStepper": "stage.stepper", "PatternSteps": "stage.plays", "Predict": "predict",
    "Providers": "providers", "Rerun": "seeds.rerun", "Stepper": "stage.stepper",
    "Steps": "stage.steps", "StoreProbe": "store_probe", "Sweep": "seeds.panel",
    "Workbench": "panels", "export_html": "export",
}  # fmt: skip

__all__ = list(_ROOM)


def __getattr__(name: str) -> Any:
    """Widgets only where somebody asks: the command line draws pages without ipywidgets."""
    if name not in _ROOM:
        raise AttributeError(f"module 'lockkit.workbench' has no attribute {name!r}")
    return getattr(import_module(f"lockkit.workbench.{_ROOM[name]}"), name)
