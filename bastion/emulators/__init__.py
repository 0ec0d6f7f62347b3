"""The cloud on one machine: the Cloud TPU API (`tpu`) and Cloud Storage (`gcs`), for the real client libraries."""
