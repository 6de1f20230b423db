import base64
import hashlib
import hmac
import time


def is_genuine(headers: dict[str, str], body: bytes, secret: str) -> bool:
    if abs(time.time() - int(headers["webhook-timestamp"])) > 300:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    right = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    given = [one.removeprefix("v1,") for one in headers["webhook-signature"].split()]
    return any(hmac.compare_digest(right, one) for one in given)
