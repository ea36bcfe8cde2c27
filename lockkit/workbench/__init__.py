"""The notebooks' controls and pictures. They need ipywidgets; the exports need nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockkit.workbench.export import export_html as export_html
    from lockkit.workbench.panels import Workbench as Workbench
    from lockkit.workbench.stepper import Stepper as Stepper
    from lockkit.workbench.steps import Steps as Steps

__all__ = ["Stepper", "Steps", "Workbench", "export_html"]


def __getattr__(name: str) -> Any:
    """Widgets only where somebody asks: the command line draws pages without ipywidgets."""
    match name:
        case "Workbench":
            from lockkit.workbench.panels import Workbench

            return Workbench
        case "Stepper":
            from lockkit.workbench.stepper import Stepper

            return Stepper
        case "Steps":
            from lockkit.workbench.steps import Steps

            return Steps
        case "export_html":
            from lockkit.workbench.export import export_html

            return export_html
    raise AttributeError(f"module 'lockkit.workbench' has no attribute {name!r}")
