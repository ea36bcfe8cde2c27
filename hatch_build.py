"""What a wheel has that the tree has not: data sets and notebooks, and links that work on PyPI.

datasets/ and notebooks/ are packed as lockkit/_shipped/; an editable install needs none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LEFT_OUT = ("__pycache__", ".ipynb_checkpoints")


class Description(MetadataHookInterface):
    """The README as PyPI shows it: its relative links and its picture lead to the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        source = metadata["urls"]["Source"]
        raw = source.replace("//github.com/", "//raw.githubusercontent.com/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\((?=[\w./-]+\.svg\))", f"]({raw}/main/", text)
        text = re.sub(r"\]\((?!https?://|#)", f"]({source}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class Shipped(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it packs a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        for folder in ("datasets", "notebooks"):
            for file in sorted((root / folder).rglob("*")):
                name = file.relative_to(root).as_posix()
                paired = file.with_suffix(".ipynb").exists() and file.suffix == ".py"
                if file.is_file() and not paired and not set(file.parts) & set(LEFT_OUT):
                    build_data["force_include"][str(file)] = f"lockkit/_shipped/{name}"
