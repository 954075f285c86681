"""What holds for every test."""

import os

from hypothesis import settings

# The machine that tests is shared and slow at times: an example has no deadline of its own, the test has (pytest's
# timeout). A failure prints the blob that repeats it.
settings.register_profile("rankscope", deadline=None, print_blob=True)
settings.load_profile("rankscope")

# Tests say what they set. A developer's own settings must not change what they see, in this process or a child of it.
for _name in [name for name in os.environ if name.startswith("RANKSCOPE")]:
    del os.environ[_name]

# Nor how Python buffers: unbuffered, as in many containers, output that cannot be written is never left for the end.
os.environ.pop("PYTHONUNBUFFERED", None)
