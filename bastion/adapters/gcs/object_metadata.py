"""The custom metadata of objects in Cloud Storage, behind the `ObjectMetadata` port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bastion.adapters.bucket_requests.answers import ConditionNotMet, NoSuchObject, Transient
from bastion.adapters.gcs.client import shared_client
from bastion.adapters.gcs.errors import FAILURES, explain
from bastion.core.errors import PreconditionFailed, StoreUnavailable
from bastion.ports import DescribedObject

_FIELDS = "items(name,generation,metageneration,metadata),nextPageToken"


class GcsObjectMetadata:
    """Works on any bucket; the library retries."""

    def list(self, bucket: str, prefix: str) -> Iterator[DescribedObject]:
        try:
            for blob in shared_client().list_blobs(bucket, prefix=prefix or None, fields=_FIELDS):
                yield DescribedObject(
                    name=blob.name,
                    generation=blob.generation,
                    metageneration=blob.metageneration,
                    metadata=blob.metadata or {},
                )
        except FAILURES as failure:
            raise _meant(failure, bucket, f"listing gs://{bucket}/{prefix}") from failure

    def patch(self, bucket: str, found: DescribedObject, changes: Mapping[str, str]) -> None:
        blob = shared_client().bucket(bucket).blob(found.name, generation=found.generation)
        blob.metadata = dict(changes)
        try:
            blob.patch(if_generation_match=found.generation, if_metageneration_match=found.metageneration)
        except FAILURES as failure:
            raise _meant(failure, bucket, f"changing the metadata of gs://{bucket}/{found.name}") from failure


def _meant(failure: Exception, bucket: str, doing: str) -> Exception:
    found = explain(failure, bucket=bucket, doing=doing)
    if isinstance(found, (ConditionNotMet, NoSuchObject)):
        return PreconditionFailed(f"{doing}: it was changed or deleted in the meantime")
    if isinstance(found, Transient):
        return StoreUnavailable(f"{doing}: {found}")
    return found
