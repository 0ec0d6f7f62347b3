"""Buckets of Amazon S3 and of services that speak its protocol; importing it raises Refused without the extra `s3`."""

from bastion.core.errors import Refused

try:
    import boto3  # noqa: F401
except ModuleNotFoundError as error:
    raise Refused("S3 needs boto3, which is not installed; run `pip install 'bastion[s3]'`") from error
