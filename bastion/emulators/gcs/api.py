"""The HTTP handler of the storage endpoint: chooses between the JSON API, batches and the XML API.

With a table of identities, the access token names the caller; else credentials are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bastion.core.errors import StoreError
from bastion.core.plain_text import plain
from bastion.emulators.gcs import json_api, xml_api
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.parameters import Parameters
from bastion.emulators.gcs.resources import StorageError
from bastion.emulators.gcs.storage_errors import not_served, of_storage, of_store
from bastion.emulators.gcs.uploads import Uploads
from bastion.emulators.gcs.xml_multipart import MultipartUploads
from bastion.net.http1 import Request, Response
from bastion.storage_wire import batch
from bastion.storage_wire.refusals import Refusal, as_json, as_text, as_xml

_log = logging.getLogger(__name__)

Handler = Callable[[Request], Response]


def handler(buckets: Buckets, uploads: Uploads) -> Handler:
    """Return the handler; thread-safe."""
    multipart_uploads = MultipartUploads()

    def answer(request: Request, credentials: str = "") -> Response:
        render = as_json if is_json(request) else as_xml
        try:
            call = _call(request, credentials)
            if json_api.is_json_path(request.path):
                if json_api.is_media(call):
                    render = as_text
                return json_api.answer(call)
            if request.path in batch.PATHS:
                credentials = request.headers.get("Authorization")
                return batch.answer(request, lambda inner: single(inner, credentials))
            return xml_api.answer(call)
        except StorageError as error:
            return render(of_storage(error, is_json=render is not as_xml))
        except StoreError as error:
            _log.warning("%s %s: %s", request.method, plain(request.path), error)
            return render(of_store(error))
        except Refusal as refusal:
            return render(refusal)

    def single(request: Request, credentials: str) -> Response:
        """Answer one call of a batch, which has the batch's credentials unless it brings its own.

        Media and nested batches are not allowed.
        """
        if request.path.startswith(json_api.PREFIX):
            response = answer(request, credentials)
            if isinstance(response.body, bytes):
                return response
            response.close()
        return as_json(not_served(request.method, f"{request.path} inside of a batch"))

    def _call(request: Request, credentials: str) -> Call:
        credentials = request.headers.get("Authorization") or credentials
        caller = "" if buckets.access is None else buckets.access.caller(credentials)
        method = request.method
        if method == "POST" and (meant := request.headers.get("X-HTTP-Method-Override")):
            method = meant.upper()
        return Call(
            request=request,
            method=method,
            parameters=Parameters(request.query),
            base=f"{scheme_of(request)}://{request.authority}",
            buckets=buckets.as_caller(caller),
            caller=caller,
            uploads=uploads,
            multipart_uploads=multipart_uploads,
        )

    return answer


def is_json(request: Request) -> bool:
    return json_api.is_json_path(request.path) or request.path in batch.PATHS


def scheme_of(request: Request) -> str:
    """The scheme that the client uses, or that a TLS terminator reports."""
    return "https" if request.secure or request.headers.get("X-Forwarded-Proto").lower() == "https" else "http"
