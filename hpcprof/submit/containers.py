"""Where the training runs in a container: the command with its runtime, or options of Pyxis.

Apptainer: hpcprof launch stays outside and passes what it needs through (launch/container.py).
Pyxis, a plug-in of srun: the whole task is inside, so launch runs there, with the Python of the
image, and hpcprof is mounted. Mounts that only the job knows are added by the job script.
"""

from __future__ import annotations

from hpcprof.errors import UsageError
from hpcprof.job_spec import ContainerSpec, JobSpec
from hpcprof.site_config import Site
from hpcprof.submit.extras import check_container, check_pyxis
from hpcprof.submit.placement import Placement

# where the package is mounted; nothing else is in its parent
PACKAGE_INSIDE = "/opt/hpcprof/hpcprof"
# mounted, so that hpcprof flush outside finds the ranks inside
SCRATCH_INSIDE = "/tmp"
_GPU_FLAGS = ("--nv", "--nvccli", "--rocm")
_IMPORT = 'import sys; sys.path.insert(0, "/opt/hpcprof"); from hpcprof.__main__ import main'
_TRY = f"{_IMPORT}; import hpcprof.launch.rank; sys.exit(sys.version_info < (3, 8))"
# the image may have no Python, or an old one: better trained without a recording than not at all
_LAUNCH_INSIDE = (
    f"if \"$0\" -I -c '{_TRY}'; then exec \"$0\" -I -c '{_IMPORT}; sys.exit(main())' launch -- "
    '"$@"; fi; echo "hpcprof: $0 in the container cannot run hpcprof (see container.python); '
    'the training runs without it" >&2; exec "$@"'
)


def training_command(spec: JobSpec, site: Site) -> tuple[str, ...]:
    """The command of a rank, in front of it the container runtime where one is called.

    Raises UsageError for an option that must not be.
    """
    container = spec.container
    if container is None or container.runtime == "pyxis":
        return spec.command
    check_container(container.extra, "container.extra of the job spec")
    asks = any(option.partition("=")[0] in _GPU_FLAGS for option in container.extra)
    return (
        container.runtime,
        "exec",
        *(["--nv"] if spec.gpus_per_node and not asks else []),
        *(f"--bind={mount}" for mount in (*site.container.mounts, *container.mounts)),
        *container.extra,
        container.image,
        *spec.command,
    )


def pyxis_options(spec: JobSpec, placement: Placement, *, profiled: bool) -> list[str]:
    """Options of srun for Pyxis, but its mounts; [] without Pyxis. Raises UsageError.

    ``profiled``: a profiler may run in the ranks.
    """
    container = _pyxis(spec)
    if container is None:
        return []
    check_pyxis(container.extra, "container.extra of the job spec", profiled=profiled)
    return [
        f"--container-image={container.image}",
        f"--container-workdir={placement.workdir}",
        *container.extra,
    ]


def pyxis_mounts(spec: JobSpec, site: Site, placement: Placement) -> str:
    """What Pyxis shall mount in any case, as one word; "" without Pyxis. Raises UsageError."""
    container = _pyxis(spec)
    if container is None:
        return ""
    for field, folder in (("workdir", placement.workdir), ("output_dir", placement.output_dir)):
        if any(c in str(folder) for c in ",:"):
            raise UsageError(
                f"{field}: {folder} cannot be mounted into a container: Pyxis ends a mount at ',' "
                "and ':'. Choose another folder."
            )
    mounts = [str(placement.workdir), *site.container.mounts, *container.mounts]
    return ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in mounts)


def launcher_inside(spec: JobSpec) -> list[str]:
    """The words in front of the command that run hpcprof launch inside; [] without Pyxis."""
    container = _pyxis(spec)
    return [] if container is None else ["sh", "-c", _LAUNCH_INSIDE, container.python]


def _pyxis(spec: JobSpec) -> ContainerSpec | None:
    container = spec.container
    return container if container is not None and container.runtime == "pyxis" else None
