"""Files that are whole or not there, for their owner alone."""

import os
import tempfile
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    fd, partial = tempfile.mkstemp(dir=path.parent)  # mode 0600
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    Path(partial).replace(path)
