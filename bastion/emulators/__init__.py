"""The cloud on one machine for the real client libraries: the Cloud TPU API (`tpu`) and Cloud Storage (`gcs`)."""
