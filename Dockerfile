# The bastion's image: one daemon. It needs a ROOT and credentials for it; see docs/how-to/run-on-gcp.md.
#
#   docker build --tag bastion .
#   docker run --env BASTION_ROOT=gs://BUCKET/NAME-bastion bastion
#   docker run bastion --root=gs://BUCKET/NAME-bastion --quota_root=gs://PRIVATE-BUCKET/NAME-bastion
#   docker run --rm --entrypoint bastion bastion version
#
# `make lock-image DIGEST=sha256:...` names the base image by its digest, which releases need (docs/how-to/make-a-release.md).
FROM python:3.12-slim

# tini reaps what jobs without a slice leave behind.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*

# EXTRAS=kubernetes for slices in Kubernetes clusters, EXTRAS=kubernetes,s3 for those with a ROOT on S3. None by default: a daemon needs no JAX. EXTRAS=local installs it for jobs on emulated slices in the container.
ARG EXTRAS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/bastion
# Only wheels whose hashes are in the lock files; pip would fetch what builds a source archive without any.
COPY bastion/requirements bastion/requirements
RUN for name in base daemon $(echo "$EXTRAS" | tr , " "); do set -- "$@" "--requirement=bastion/requirements/$name.lock"; done && \
    python -m pip install --require-hashes --only-binary=:all: "$@"
COPY pyproject.toml README.md ./
COPY quota quota
COPY scheduler scheduler
COPY bastion bastion
# What builds Bastion's own wheel is in no image.
RUN python -m pip install --require-hashes --only-binary=:all: --target=.build --requirement=bastion/requirements/build.lock && \
    PYTHONPATH=.build python -m pip install --no-index --no-deps --no-build-isolation . && \
    rm -rf .build
# Wheels for the agent on Cloud TPU's images, which have an older Python.
RUN bastion daemon agent-wheels --python=3.10

RUN useradd --create-home --uid 10001 bastion && install -d -o bastion /var/lib/bastion /buckets
USER bastion
# Not the folder with the sources, so that the installed package runs.
WORKDIR /var/lib/bastion
# The default ROOT is a folder; mount a volume there.
ENV BASTION_ROOT=/buckets/team-bastion BASTION_HOME=/var/lib/bastion PYTHONUNBUFFERED=1
VOLUME ["/var/lib/bastion", "/buckets"]

ENTRYPOINT ["tini", "--", "bastion", "daemon", "run"]
CMD []
