#!/usr/bin/env python
"""Headway's command line. The only place that puts `platform/` on the path."""

import os
import sys
from pathlib import Path

# Processes of the data plane load a slimmer set of apps (about 40 MB less each).
DATA_PLANE_COMMANDS = {"gateway", "dispatcher"}


def main() -> None:
    # Position 1: the checkout's root stays first, so nothing below platform/ can hide a top-level package.
    sys.path.insert(1, str(Path(__file__).resolve().parent / "platform"))
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    slim = command in DATA_PLANE_COMMANDS
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "headway.settings_data_plane" if slim else "headway.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
