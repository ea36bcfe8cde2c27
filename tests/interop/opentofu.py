"""OpenTofu: the one on PATH, or built from its Go modules (some ten minutes, once)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from environment import ROOT, Unavailable, run

VERSION = "v1.12.6"
MODULE = "github.com/opentofu/opentofu"
HOME = ROOT / ".cache" / "opentofu"
PROGRAM = HOME / f"tofu-{VERSION}"


def program() -> str:
    """Its path; raises `Unavailable` without Go or its modules."""
    found = shutil.which("tofu")
    if found is not None:
        return found
    if not PROGRAM.is_file():
        go = shutil.which("go")
        if go is None:
            raise Unavailable("there is neither tofu nor go on PATH: opentofu.org, go.dev")
        _build(go)
    return str(PROGRAM)


def _build(go: str) -> None:
    """`go install` refuses a module that replaces others, so a module of our own repeats that."""
    HOME.mkdir(parents=True, exist_ok=True)
    variables = os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false"}
    done = subprocess.run(
        [go, "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        cwd=HOME, env=variables, text=True, capture_output=True, timeout=600,
    )  # fmt: skip
    if done.returncode:
        raise Unavailable(f"OpenTofu could not be fetched: {(done.stdout + done.stderr)[-300:]}")
    theirs = Path(json.loads(done.stdout)["Dir"])
    text = (theirs / "go.mod").read_text()
    text = re.sub(r"^tool \(.*?^\)", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^module .*", f"module tofu\n\nrequire {MODULE} {VERSION}", text)
    (HOME / "go.mod").write_text(text)
    shutil.copyfile(theirs / "go.sum", HOME / "go.sum")
    line = [go, "build", "-C", str(HOME), "-o", str(PROGRAM), f"{MODULE}/cmd/tofu"]
    run("OpenTofu", line, variables)
