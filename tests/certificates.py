"""Create a self-signed certificate for a test's server on this machine."""

import subprocess
from pathlib import Path

from tests.programs import find_program


def make_certificate(certificate: Path, key: Path) -> None:
    """Write a certificate for 127.0.0.1 and no other name, which lasts two days, and its private key."""
    kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=collector", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([find_program("openssl"), *kind, *names, *files], check=True, capture_output=True)
