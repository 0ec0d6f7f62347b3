"""How a cluster is reached and who asks: from its settings to a session of the official client.

Three ways: `server` with `token_file`, `kubeconfig` with `context`, or the service account of the pod this runs in.
Renewal of tokens is the library's (in-cluster files, exec plugins), or a file that is read again. Nothing here sends a
request. Errors are `ProvisionerUnavailable`: an operator's slip must not end jobs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bastion.adapters.kubernetes.plugin_calls import PluginCalls
from bastion.adapters.loading import LIBRARIES
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.clusters import ClusterSettings

# An exec plugin may talk to a cloud; the library itself waits for it forever.
PLUGIN_SECONDS = 20.0
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_MAX_BYTES = 64 * 1024

# By kubeconfig. The client keeps certificates in files, by content, which a second thread would find half written
# (kubernetes: config/kube_config.py, _create_temp_file_with_content).
_LOADING: dict[str, threading.Lock] = {}


class Session:
    """A connection pool of the official client with the credentials of one loading; thread-safe.

    Attributes:
        server: The API server's URL, without a slash at its end.
        pool: `urllib3.PoolManager`, configured by the library: TLS, client certificate, proxy.
    """

    def __init__(self, configuration: Any, *, cluster: str, plugin: str = "") -> None:
        from kubernetes.client import ApiClient

        self.server = str(configuration.host).rstrip("/")
        self._configuration = configuration
        self.pool = ApiClient(configuration=configuration).rest_client.pool_manager
        self._cluster = cluster
        self._plugin_calls = _plugin_calls(cluster, plugin) if plugin else None
        self._renewing = threading.Lock()

    def headers(self, *, seconds: float = math.inf) -> dict[str, str]:
        """Return the header with the current token, renewed if it expires; empty with a client certificate.

        `seconds` limits the wait for a plugin.
        """
        with _explained(self._cluster, "its credentials cannot be renewed"):
            if self._plugin_calls is not None:
                found = self._plugin_calls.run(self._authorization, seconds=seconds)
            else:
                with self._renewing:
                    found = self._authorization()
        return {"Authorization": found} if found else {}

    def close(self) -> None:
        """Close idle connections; requests in flight go on."""
        self.pool.clear()

    def _authorization(self) -> str:
        setting = self._configuration.auth_settings().get("BearerToken")
        return str(setting["value"] or "") if setting else ""


def open_session(
    settings: ClusterSettings, *, account: Path = _ACCOUNT, environ: Mapping[str, str] | None = None
) -> Session:
    """Load the credentials of a cluster.

    Args:
        settings: The cluster's.
        account: Folder of the pod's service account.
        environ: Names the API server in a pod; None: the process's.

    Raises:
        ProvisionerUnavailable: With what is missing, and what to do.
    """
    try:
        with LIBRARIES:
            from kubernetes.client import Configuration
            from kubernetes.config import incluster_config, kube_config  # noqa: F401 - used below
    except ImportError as error:
        raise ProvisionerUnavailable(
            f"cluster {settings.name}: the Kubernetes client is not installed ({error}); run "
            "`pip install 'bastion[kubernetes]'`"
        ) from error
    configuration = Configuration()
    plugin = ""
    with _explained(settings.name, "its credentials cannot be loaded"):
        if settings.server:
            _from_server(configuration, settings)
        elif settings.kubeconfig:
            with _LOADING.setdefault(settings.kubeconfig, threading.Lock()):
                plugin = _from_kubeconfig(configuration, settings)
        else:
            _from_pod(configuration, settings.name, account, environ)
        host = urlsplit(configuration.host).hostname or ""
    if host in _LOOPBACK:
        # Like kubectl: a proxy cannot reach this machine's loopback.
        configuration.proxy = None
    elif not configuration.host.startswith("https://"):
        raise ProvisionerUnavailable(
            f"cluster {settings.name}: the API server's address is {configuration.host!r}, which would send the token "
            "in clear text; use an https:// URL"
        )
    return Session(configuration, cluster=settings.name, plugin=plugin)


def _from_server(configuration: Any, settings: ClusterSettings) -> None:
    configuration.host = settings.server
    if settings.ca_file:
        if not Path(settings.ca_file).is_file():
            raise ProvisionerUnavailable(
                f"cluster {settings.name}: ca_file {settings.ca_file} does not exist; save the cluster's CA there"
            )
        configuration.ssl_ca_cert = settings.ca_file
    if not settings.token_file:
        return
    file = Path(settings.token_file)

    def read_again(to: Any) -> None:
        to.api_key["authorization"] = f"Bearer {_token(file, settings.name)}"

    read_again(configuration)
    configuration.refresh_api_key_hook = read_again


def _token(file: Path, cluster: str) -> str:
    try:
        with file.open("rb") as opened:
            token = opened.read(_TOKEN_MAX_BYTES).decode("ascii").strip()
    except OSError as error:
        raise ProvisionerUnavailable(
            f"cluster {cluster}: cannot read token_file {file}: {error.strerror}; write a token there, or correct the "
            "settings"
        ) from error
    except UnicodeDecodeError:
        token = ""
    if not token or any(letter.isspace() for letter in token):
        raise ProvisionerUnavailable(f"cluster {cluster}: token_file {file} does not hold one token; write one there")
    return token


def _from_kubeconfig(configuration: Any, settings: ClusterSettings) -> str:
    """Load the context; returns the command of its exec plugin, empty without one."""
    from kubernetes.config import kube_config

    file = Path(settings.kubeconfig).expanduser()
    if not file.is_file():
        what = "is not a file" if file.exists() else "does not exist"
        raise ProvisionerUnavailable(
            f"cluster {settings.name}: kubeconfig {file} {what}; create it (on GKE: `gcloud container clusters "
            "get-credentials`, on EKS: `aws eks update-kubeconfig`), or correct the settings"
        )
    try:
        merged = kube_config.KubeConfigMerger(str(file)).config
        known = [context["name"] for context in merged.value.get("contexts") or ()]
        wanted = settings.context or merged.value.get("current-context") or ""
    except Exception as error:
        problem = _short(str(error)) or type(error).__name__
        raise ProvisionerUnavailable(
            f"cluster {settings.name}: {file} is not a kubeconfig ({problem}); correct the file, or name another one"
        ) from error
    if wanted not in known:
        what = f"has no context {wanted!r}" if wanted else "names no current context"
        raise ProvisionerUnavailable(
            f"cluster {settings.name}: kubeconfig {file} {what}; set `context` to one of: {', '.join(known) or 'none'}"
        )
    user = _user_of(merged, wanted)
    plugin = str((user.get("exec") or {}).get("command") or "")
    provider = str((user.get("auth-provider") or {}).get("name") or "")
    if plugin and shutil.which(plugin) is None and not (file.parent / plugin).is_file():
        raise ProvisionerUnavailable(
            f"cluster {settings.name}: kubeconfig {file} needs the credential plugin {plugin!r}, which is not "
            "installed; install it on the bastion's host, or use `server` with `token_file`"
        )
    loader = kube_config.KubeConfigLoader(config_dict=merged, active_context=wanted, config_base_path=None)
    # The library logs a plugin's failure and goes on without credentials.
    with _logged() as words:
        _plugin_calls(settings.name, plugin or provider or "none").run(lambda: loader.load_and_set(configuration))
    if plugin and not configuration.api_key and not configuration.cert_file:
        raise ProvisionerUnavailable(
            f"cluster {settings.name}: the credential plugin {plugin!r} of kubeconfig {file} gave no credentials: "
            f"{_short('; '.join(words)) or 'no token'}; run `kubectl --kubeconfig={file} --context={wanted} version` "
            "as the bastion's user"
        )
    return plugin or provider


def _user_of(merged: Any, context: str) -> Mapping[str, Any]:
    name = next(entry for entry in merged.value["contexts"] if entry["name"] == context)["context"].safe_get("user")
    for entry in merged.value.get("users") or ():
        if entry["name"] == name:
            found: Mapping[str, Any] = entry.value.get("user") or {}
            return found
    return {}


def _from_pod(configuration: Any, cluster: str, account: Path, environ: Mapping[str, str] | None) -> None:
    from kubernetes.config import ConfigException, incluster_config

    given = {} if environ is None else {"environ": environ}
    loader = incluster_config.InClusterConfigLoader(
        token_filename=str(account / "token"), cert_filename=str(account / "ca.crt"), **given
    )
    try:
        loader.load_and_set(configuration)
    except ConfigException as error:
        raise ProvisionerUnavailable(
            f"cluster {cluster}: the settings have neither `server` nor `kubeconfig`, and this process does not run in "
            f"a pod with a service account ({str(error).rstrip('.')}); add one of them"
        ) from error


def _plugin_calls(cluster: str, plugin: str) -> PluginCalls[Any]:
    return PluginCalls(cluster=cluster, plugin=plugin, seconds=PLUGIN_SECONDS)


@contextlib.contextmanager
def _explained(cluster: str, what: str) -> Iterator[None]:
    """Turn whatever the library raises over foreign files and programs into the port's error."""
    try:
        yield
    except ProvisionerUnavailable:
        raise
    except Exception as error:
        words = _short(str(error)) or type(error).__name__
        raise ProvisionerUnavailable(
            f"cluster {cluster}: {what}: {words}; correct the kubeconfig or the account that the settings name"
        ) from error


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """Collect what the root logger gets as an error meanwhile."""
    words: list[str] = []

    class _Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.append(record.getMessage())

    handler = _Collect(level=logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield words
    finally:
        logging.getLogger().removeHandler(handler)


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= 300 else one_line[:299] + "…"
