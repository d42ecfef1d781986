"""The `jaxplan` command, also as `python -m jaxplan`."""

import os
import sys


def main() -> int:
    """Run the command; after Ctrl-C the process ends without waiting for its threads."""
    interrupted = 130
    try:
        from jaxplan.cli._main import main as run

        code = run()
    except KeyboardInterrupt:  # while the command is imported
        code = interrupted
    if code == interrupted:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
