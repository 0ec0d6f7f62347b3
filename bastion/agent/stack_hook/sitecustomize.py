"""Let Python processes show the stacks of all threads when Bastion asks for them, because their job is stuck.

`faulthandler` writes them from C, to stderr, also while a thread hangs in a library and holds the interpreter's lock.

Python imports `sitecustomize` at its start, here before any other of that name, which is run at the end. Runs in the
user's interpreter, of any version: use only the standard library here, and never raise.
"""

import importlib.machinery
import importlib.util
import os
import sys

_STDERR = 2


def _register() -> None:
    try:
        import faulthandler

        faulthandler.register(int(os.environ["BASTION_STACKS_SIGNAL"]), file=_STDERR, all_threads=True)
    except Exception:  # noqa: BLE001 - without it the log lacks stacks, and nothing else
        pass


def _run_the_next() -> None:
    # Each of Bastion's hooks runs once, however often its folder is on the path.
    done = sys.__dict__.setdefault("_bastion_hooks", [])
    done.append(__file__.rpartition("/")[0])
    path = [folder for folder in sys.path if folder not in done]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_register()
_run_the_next()
