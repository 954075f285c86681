"""`python -m rankscope.collector` is `rankscope`."""

import sys

from rankscope.collector.cli import main

sys.exit(main())
