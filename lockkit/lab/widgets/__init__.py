"""The notebooks' controls and pictures. They need ipywidgets; the exports need nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockkit.lab.widgets.charts import Charts as Charts
    from lockkit.lab.widgets.console.console import Console as Console
    from lockkit.lab.widgets.contention import Contention as Contention
    from lockkit.lab.widgets.export import export_html as export_html
    from lockkit.lab.widgets.panels import Workbench as Workbench
    from lockkit.lab.widgets.predict import Predict as Predict
    from lockkit.lab.widgets.providers import Providers as Providers
    from lockkit.lab.widgets.seeds.sliders import TimeSliders as TimeSliders
    from lockkit.lab.widgets.stage.scenarios import PatternSteps as PatternSteps
    from lockkit.lab.widgets.stage.stepper import PatternStepper as PatternStepper
    from lockkit.lab.widgets.stage.stepper import Stepper as Stepper
    from lockkit.lab.widgets.stage.steps import Steps as Steps
    from lockkit.lab.widgets.store_probe import StoreProbe as StoreProbe

_EXPORTS = {
    "Charts": "charts", "Console": "console.console", "Contention": "contention",
    "PatternStepper": "stage.stepper", "PatternSteps": "stage.scenarios", "Predict": "predict",
    "Providers": "providers", "Stepper": "stage.stepper", "Steps": "stage.steps",
    "StoreProbe": "store_probe", "TimeSliders": "seeds.sliders", "Workbench": "panels",
    "export_html": "export",
}  # fmt: skip

__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Import widgets only on demand: the command line draws pages without ipywidgets."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'lockkit.lab.widgets' has no attribute {name!r}")
    return getattr(import_module(f"lockkit.lab.widgets.{_EXPORTS[name]}"), name)
