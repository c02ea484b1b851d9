"""`python -m vrambudget`."""

import sys

from vrambudget.cli import main

sys.exit(main())
