"""Objects in S3, MinIO and other stores that honour `If-None-Match: *` on a put. Only this file imports boto3.

**Theory.** A put carries `If-None-Match: *`: 412 says that the name is taken. Two answers need care:

*412 to a repetition.* boto3 repeats a put whose answer was lost. When the first one had its effect, the repetition gets
412, and the winner would believe that it lost. So each put carries a tag of its own in the object's user metadata;
after a 412 to a repeated put the tag is read back, and if it is ours, we were the one.

*409.* Another request for this name is under way, and this one did nothing. It is asked again; when it stays so and
the name is not taken afterwards, the answer is Unavailable, never a lie.

*An object below an object.* MinIO keeps "a" and "a/b" when both are put, and then leaves "a/b" out of every list
without a word; others refuse it. So a key ends in "=", which no name contains, and no key is a folder of another.
Keys that do not end so are not ours and are not listed.

Credentials come from boto3's own chain alone (environment, profile, role): they are never an argument, never in a
URL and never in a message. What can be mended by trying again is Unavailable; what a person has to mend (bucket,
permission, credentials) is AccessDenied, in one line that names the setting. That is an Unavailable too, because a
token that has expired is renewed while everything runs. Whatever else the library raises is an answer of the store as
well: nobody above catches boto3's own errors.

*A redirect.* boto3 follows one to another region of AWS. For any other it asks the bucket for its region, is redirected
again, and so on until Python's stack ends. So a redirect that names no region is refused before boto3 sees it.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore import exceptions as boto
from botocore.config import Config

from sluice.storage.errors import AccessDenied, Corrupt, Invalid, NotFound, SluiceError, Unavailable
from sluice.storage.format.frame import Buffer
from sluice.storage.stores.limits import check_name, folder_of
from sluice.storage.stores.objects import check_range

CONNECT_SECONDS = 3
READ_SECONDS = 20
ATTEMPTS = 4
CONNECTIONS = 32
_TAG = "sluice-put"
_END = "="
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\Z")

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MISSING = frozenset(("NoSuchKey", "404", "NotFound"))
_DENIED = frozenset(("AccessDenied", "403", "Forbidden", "AllAccessDisabled", "AccountProblem", "401", "Unauthorized"))
_CREDENTIALS = frozenset(
    ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "400")
)
_BUSY = frozenset(
    (
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "InternalError",
        "OperationAborted",
        "XMinioServerNotInitialized",
    )
)


class S3Objects:
    """storage.stores.objects.ObjectStore on one prefix of one bucket. Blocking, safe for threads."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        endpoint_url: str | None = None,
        *,
        region: str | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        """endpoint_url: None for AWS, otherwise http(s)://host:port of the server. No request is sent yet.

        Raises Invalid for a bucket, prefix or endpoint that cannot be one. The attribute `endpoint` is the URL that is
        really used, which boto3 may also take from its environment.
        """
        self.bucket = _check_bucket(bucket)
        _check_endpoint(endpoint_url)
        self._prefix = check_name(prefix) + "/" if prefix else ""
        self.endpoint = endpoint_url or ""
        self._where = f"bucket {bucket!r} at {endpoint_url or 'AWS'}"
        config = Config(
            connect_timeout=connect_seconds,
            read_timeout=read_seconds,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=CONNECTIONS,
            s3={"addressing_style": "path"} if endpoint_url else None,
        )
        with self._errors("", "opening"):
            session = boto3.session.Session(region_name=region)
            fallback = "us-east-1" if endpoint_url and not session.region_name else None
            self._client: Any = session.client("s3", endpoint_url=endpoint_url, config=config, region_name=fallback)
            self.endpoint = str(self._client.meta.endpoint_url)
            self._client.meta.events.register_first("needs-retry.s3", self._refuse_redirect)

    def put(self, name: str, data: Buffer) -> bool:
        key = self._key(name)
        tag = uuid.uuid4().hex
        body = data if isinstance(data, bytes | bytearray) else bytes(data)
        for attempt in range(ATTEMPTS):
            try:
                with self._errors(name, "writing"):
                    self._client.put_object(
                        Bucket=self.bucket, Key=key, Body=body, IfNoneMatch="*", Metadata={_TAG: tag}
                    )
                return True
            except _Taken as taken:
                if not taken.conflict and not taken.repeated and not attempt:
                    return False
                owner = self._owner(key, name)
                if owner is not None:
                    return owner == tag
        raise Unavailable(f"{self._where} is busy with other writers of {name}")

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        check_range(start, length)
        key = self._key(name)
        wanted: dict[str, str] = {}
        if start or length is not None:
            wanted["Range"] = f"bytes={start}-" + ("" if length is None else str(start + max(length, 1) - 1))
        with self._errors(name, "reading"):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=key, **wanted)
                data: bytes = answer["Body"].read()
            except boto.ClientError as error:
                if _code(error) in ("InvalidRange", "416"):
                    return b""
                raise
        if wanted and _status(answer) != 206:  # a server that ignores the range sends everything
            data = data[start:]
        return data if length is None else data[:length]

    def names(self, prefix: str) -> list[str]:
        """See ObjectStore. One request for every thousand names."""
        return sorted(name for name, _ in self._listed(prefix))

    def size(self, prefix: str) -> int:
        """See ObjectStore. One request for every thousand names."""
        return sum(size for _, size in self._listed(prefix))

    def _listed(self, prefix: str) -> list[tuple[str, int]]:
        """The names that start with a prefix, and the bytes of each object."""
        folder = folder_of(prefix)
        if folder is None:
            return []
        # MinIO refuses to list "." and "..", although names may begin so.
        wanted = self._prefix + (folder if prefix[len(folder) :] in (".", "..") else prefix)
        found: list[tuple[str, int]] = []
        with self._errors(prefix, "listing"):
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=wanted):
                found.extend((entry["Key"], int(entry["Size"])) for entry in page.get("Contents", ()))
        ours = [(key[len(self._prefix) : -len(_END)], size) for key, size in found if key.endswith(_END)]
        return [(name, size) for name, size in ours if name.startswith(prefix)]

    def delete(self, name: str) -> None:
        with self._errors(name, "deleting"), contextlib.suppress(NotFound):
            self._client.delete_object(Bucket=self.bucket, Key=self._key(name))

    def url_of(self, name: str) -> str:
        """Return the URL of an object for other programs."""
        return f"s3://{self.bucket}/{self._key(name)}"

    def _key(self, name: str) -> str:
        return self._prefix + check_name(name) + _END

    def _owner(self, key: str, name: str) -> str | None:
        """The tag of the put that created the object, "" if it has none, None if there is no object."""
        try:
            with self._errors(name, "reading"):
                answer = self._client.head_object(Bucket=self.bucket, Key=key)
        except NotFound:
            return None
        return str(answer.get("Metadata", {}).get(_TAG, ""))

    @contextlib.contextmanager
    def _errors(self, name: str, doing: str) -> Iterator[None]:
        """Turn what boto3 raises into the errors of Sluice, without ever repeating a secret."""
        try:
            yield
        except SluiceError:
            raise
        except boto.ClientError as error:
            raise self._answered(error, name, doing) from error
        except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError) as error:
            raise AccessDenied(
                f"no S3 credentials for {self._where}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            ) from error
        except (boto.ProfileNotFound, boto.NoRegionError, boto.ParamValidationError, ValueError) as error:
            raise Invalid(f"the S3 settings for {self._where} cannot be used: {_line(error)}") from error
        except boto.FlexibleChecksumError as error:
            raise Corrupt(f"{name} in {self._where} fails the store's checksum") from error
        except boto.HTTPClientError as error:
            if type(error) is boto.HTTPClientError:  # of a request that could not even be sent: it may name a header
                raise self._unsent(error.kwargs.get("error"), name, doing) from None
            raise Unavailable(f"no answer from {self._where} while {doing} {name}: {_line(error)}") from error
        except (boto.BotoCoreError, OSError) as error:
            raise Unavailable(f"no answer from {self._where} while {doing} {name}: {_line(error)}") from error
        except Exception as error:  # its words are unknown, and may have credentials in them
            raise Unavailable(f"boto3 fails at {self._where} while {doing} {name}: {type(error).__name__}") from error

    def _refuse_redirect(self, response: Any = None, **_: Any) -> None:
        """Called by boto3 for every answer. Raises Invalid for a redirect that is not to another region of AWS."""
        if response is None or response[0].status_code not in _REDIRECTS:
            return
        headers = response[0].headers
        if "x-amz-bucket-region" in headers or "Region" in response[1].get("Error", {}):
            return
        goal = urlsplit(headers.get("location", ""))
        shown = f"{goal.scheme}://{goal.netloc.rpartition('@')[2]}" if goal.netloc else "an unnamed address"
        raise Invalid(
            f"the S3 endpoint {self.endpoint} redirects to {shown} (HTTP {response[0].status_code}); "
            "give the endpoint that answers by itself"
        )

    def _unsent(self, cause: object, name: str, doing: str) -> Unavailable:
        """The error for a request that was not sent. What Python says of it may have credentials in it."""
        if isinstance(cause, ValueError):
            return AccessDenied(
                f"the S3 credentials for {self._where} have a letter that no request can have, such as a line's end"
            )
        return Unavailable(f"nothing could be sent to {self._where} while {doing} {name}: {type(cause).__name__}")

    def _answered(self, error: boto.ClientError, name: str, doing: str) -> Exception:
        """The error for an explicit answer of the server."""
        code, status = _code(error), _status(error.response)
        if doing == "writing" and status in (409, 412):
            repeated = bool(error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0))
            return _Taken(conflict=status == 409, repeated=repeated)
        if code == "NoSuchBucket":
            return AccessDenied(f"there is no {self._where}; create it, or correct the bucket or the endpoint")
        if code in _MISSING:
            return NotFound(f"there is no object {name} in {self._where}")
        if code == "NotImplemented" or status == 501:
            needs = ", which needs If-None-Match: *" if doing == "writing" else ""
            return Invalid(f"{self._where} cannot do what is asked while {doing} {name}{needs}: {code} (HTTP {status})")
        if code in _BUSY or status >= 500 or status == 429:
            return Unavailable(f"{self._where} cannot serve now while {doing} {name}: {code}")
        if code in _CREDENTIALS:
            return AccessDenied(f"the S3 credentials are not accepted for {self._where}: {code}")
        if code in _DENIED or status in (401, 403):
            return AccessDenied(f"the S3 credentials may not go on {doing} in {self._where}: {code}")
        return Invalid(f"{self._where} refuses {doing} {name}: {code} (HTTP {status})")


class _Taken(Exception):
    """A conditional put was refused.

    conflict: only because another one was under way. repeated: boto3 had sent this put more than once.
    """

    def __init__(self, *, conflict: bool, repeated: bool) -> None:
        super().__init__(conflict, repeated)
        self.conflict = conflict
        self.repeated = repeated


def _check_bucket(bucket: str) -> str:
    if not _BUCKET.match(bucket):
        raise Invalid(
            f"{bucket!r} is not a bucket name: use 3 to 63 of a-z 0-9 . -, beginning and ending with a letter or digit"
        )
    return bucket


def _check_endpoint(endpoint_url: str | None) -> None:
    if endpoint_url is None:
        return
    parts = urlsplit(endpoint_url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise Invalid("the S3 endpoint is http://HOST:PORT or https://HOST:PORT, without a name or password in it")


def _code(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(response: Any) -> int:
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
