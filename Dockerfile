# The bastion's image: one daemon. What it needs beside this is a ROOT (a folder or, later, a bucket) and a place for
# BASTION_HOME; both are volumes here.
FROM python:3.12-slim

# tini reaps what jobs without a slice leave behind; curl is what startup scripts read the metadata server with.
RUN apt-get update && apt-get install --yes --no-install-recommends curl tini && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/bastion
COPY pyproject.toml README.md ./
COPY quota quota
COPY scheduler scheduler
COPY bastion bastion
# "local" brings jax for emulated slices; an image that only schedules can do without it.
RUN python -m pip install --no-cache-dir '.[local]'

RUN useradd --create-home --uid 10001 bastion && install -d -o bastion /var/lib/bastion /buckets
USER bastion
ENV BASTION_HOME=/var/lib/bastion PYTHONUNBUFFERED=1
VOLUME ["/var/lib/bastion", "/buckets"]

ENTRYPOINT ["tini", "--", "bastion"]
CMD ["daemon", "run", "--root=/buckets/team-bastion"]
