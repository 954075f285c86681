"""Sign requests to a webhook as Standard Webhooks does (https://www.standardwebhooks.com): HMAC-SHA256 over
`ID.TIMESTAMP.BODY`.

Neither the body nor its time can be changed, and an old request cannot be sent again to a receiver that checks the time
and remembers ids.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

from rankscope.collector.config import CollectorConfig
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import read_private_text

SECRET_LENGTH_MIN: Final = 16
"""As for the tokens of HTTP: 16 hexadecimal digits are 64 bits."""
ENCODED: Final = "whsec_"
"""Begin of a secret in Base64, as Standard Webhooks has them."""


def sign(secret: bytes, identity: str, timestamp_wall_s: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`. The example is the one of Standard Webhooks.

    >>> secret = parse_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    >>> sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    signed = f"{identity}.{timestamp_wall_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def parse_secret(text: str) -> bytes:
    """Return the key in the text of a secret file: the bytes of the word, or what its Base64 stands for after
    `whsec_`. Raises ValueError for what is no secret.
    """
    word = text.strip()
    if len(word) < SECRET_LENGTH_MIN or not word.isascii() or not word.isprintable() or " " in word:
        raise ValueError(f"it must be one word of at least {SECRET_LENGTH_MIN} characters of ASCII")
    if not word.startswith(ENCODED):
        return word.encode()
    try:
        secret = base64.b64decode(word.removeprefix(ENCODED), validate=True)
    except binascii.Error as error:
        raise ValueError(f"after {ENCODED} it must be Base64: {error}") from error
    if len(secret) < SECRET_LENGTH_MIN:
        raise ValueError(f"after {ENCODED} it must be Base64 of at least {SECRET_LENGTH_MIN} bytes")
    return secret


def read_secret(config: CollectorConfig) -> bytes:
    """Return the key in the file of the settings. Raises SettingError without one, and for one that is no secret."""
    path = config.notify_webhook_secret_file
    if not path:
        raise SettingError(
            f"notify_webhook_url is set ({config.source('notify_webhook_url')}) and notify_webhook_secret_file is "
            "empty: a receiver could not tell our requests from others. `openssl rand -hex 32` makes a secret."
        )
    try:
        return parse_secret(read_private_text(path, "notify_webhook_secret_file"))
    except ValueError as error:
        raise SettingError(
            f"notify_webhook_secret_file is {path!r}, whose text is no secret: {error}, for example from "
            "`openssl rand -hex 32`."
        ) from error
