"""`python -m lockkit`: the command line, if no script is on the PATH."""

from __future__ import annotations

import sys

from lockkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
