"""`python -m jaxplan` is the `jaxplan` command."""

import sys

from jaxplan._cli import main

if __name__ == "__main__":
    sys.exit(main())
