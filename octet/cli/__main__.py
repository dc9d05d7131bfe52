"""`python -m octet.cli`."""

import sys

from octet.cli import main

sys.exit(main())
