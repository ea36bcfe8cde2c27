"""The script `lockkit`, and `python -m lockkit` if no script is on the PATH."""

from __future__ import annotations

import sys

from lockkit.cli.starting import end_at_interrupt, ignore_interrupts


def main() -> int:
    end_at_interrupt()
    from lockkit.cli.main import main as command_line

    try:
        return command_line()
    finally:
        ignore_interrupts()


if __name__ == "__main__":
    sys.exit(main())
