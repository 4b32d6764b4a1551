"""A coordinator on a machine whose clock is as many seconds off as a file says.

Run: python -m tests.faults.jumping_coordinator FILE -- ARGUMENTS OF lipt-coordinator
"""

import sys
import time
from pathlib import Path


def main() -> None:
    file, _, *arguments = sys.argv[1:]
    right = time.time
    time.time = lambda: right() + float(Path(file).read_text())
    # Modules that were imported before, such as by a template of forks, have the right one.
    for module in list(sys.modules.values()):
        if vars(module).get("time") is right:
            vars(module)["time"] = time.time
    from lipt.coordinator.__main__ import main as run

    sys.argv[1:] = arguments
    run()


if __name__ == "__main__":
    main()
