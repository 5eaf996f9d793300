# mypy: ignore-errors
# hpcprof's way into the training: hpcprof launch puts a copy of this file on PYTHONPATH, so that
# every Python of the job imports it at its start. It stands before the site's own sitecustomize,
# which is found and run here as if this one were not there. Every Python of the job: also those
# that are older than hpcprof knows, so this file keeps to what Python 2.7 can read.
import os
import sys


def _begin():
    """Tell hpcprof that a Python starts, unless the training started it."""
    if sys.version_info < (3, 8) or not os.environ.get("HPCPROF_RANK_FOLDER"):
        return
    if os.environ.get("HPCPROF_OWNER_PID", str(os.getpid())) != str(os.getpid()):
        return  # not even hpcprof is imported
    try:
        from hpcprof.annotate import startup

        startup.begin()
    except Exception:
        pass  # the job comes first


def _later_folders():
    """What follows us on the path: in front of us is none, or it would have been imported."""
    own = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.abspath(entry) for entry in sys.path]
    return sys.path[places.index(own) + 1 :] if own in places else []


def _specs():
    """Every sitecustomize that could be imported were we not there, the first one first."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None:
            continue
        if getattr(finder, "__name__", "") != "PathFinder":
            yield find("sitecustomize", None)
            continue
        for folder in _later_folders():
            yield find("sitecustomize", [folder])


def _run_the_sites_own():
    """Run it in sys.modules under its name; what it raises is for site to report."""
    from _frozen_importlib import module_from_spec

    # those that are being run: one that chains as we do would find us again, and so on
    running = sys.__dict__.setdefault("_hpcprof_sitecustomize", [])
    for spec in _specs():
        if spec is None or spec.loader is None or spec.origin in running + [__file__]:  # noqa: RUF005
            continue
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        running.append(spec.origin)
        try:
            spec.loader.exec_module(module)
        finally:
            running.remove(spec.origin)
        return
    # what the import of a missing module raises: site takes it for "there is none"
    raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")


_begin()
if sys.version_info >= (3, 6):  # noqa: UP036
    _run_the_sites_own()
else:
    imp = __import__("imp")  # gone from Python 3.12
    imp.load_module("sitecustomize", *imp.find_module("sitecustomize", _later_folders()))
