"""The temporary folder of a run. It is removed even if the process that made it is killed."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

# The shell's input ends with this process. What this process started is killed at that time, and
# may still write for a moment.
REMOVE = 'read -r _; sleep 1; rm -rf -- "$1"'


class TemporaryFolder:
    """Removed by `remove`, else when this process ends."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        atexit.register(self.remove)
        self._guard = subprocess.Popen(
            ["sh", "-c", REMOVE, "sh", str(self.path)], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )  # fmt: skip

    def remove(self) -> None:
        """Remove the folder, unless it is kept."""
        if self._guard.poll() is None:
            shutil.rmtree(self.path, ignore_errors=True)
            self.keep()

    def keep(self) -> None:
        """Leave the folder there for good: an error names a log in it."""
        atexit.unregister(self.remove)
        self._guard.kill()
        self._guard.communicate()
