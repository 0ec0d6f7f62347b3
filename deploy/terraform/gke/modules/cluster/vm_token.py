"""Prints this VM's access token as Kubernetes' clients want it from a plugin (client.authentication.k8s.io/v1)."""

import datetime
import json
import os
import sys
import urllib.request

HOST = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
URL = f"http://{HOST}/computeMetadata/v1/instance/service-accounts/default/token"
request = urllib.request.Request(URL, headers={"Metadata-Flavor": "Google"})
with urllib.request.urlopen(request, timeout=10) as response:
    answer = json.load(response)
ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=answer["expires_in"])
status = {"token": answer["access_token"], "expirationTimestamp": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
json.dump({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}, sys.stdout)
