"""`python -m rankscope.collector` is `rankscope`."""

import sys

from rankscope.collector.commands.main import main

sys.exit(main())
