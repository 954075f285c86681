"""amdsmi without a GPU: this folder on sys.path has `import amdsmi` find the module beside this file."""

from pathlib import Path

FOLDER = Path(__file__).parent
