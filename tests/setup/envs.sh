#!/bin/bash
# envs.sh [PART...]: makes Python environments. Parts:
#   venv        .venv in the clone with hpcprof (editable)
#   venv-dev    the same with what tests and linters need
#   tensorflow  in the cache: TensorFlow and nothing else
#   keras3      in the cache: TensorFlow 2.17 with Keras 3 and Horovod
#   horovod     in the cache: TensorFlow 2.15 with Horovod
# Without PART: venv-dev, tensorflow, keras3 and horovod. Horovod is compiled once for each of the two,
# about 5 minutes.
. "$(dirname "$0")/lib.sh"

HOROVOD=0.28.1

# pick_python NEWEST OLDEST (minor numbers): a python3 in that range that can make environments
pick_python() {
    local minor candidate
    for ((minor = $1; minor >= $2; minor--)); do
        for candidate in "python3.$minor" python3 /usr/bin/python3; do
            "$candidate" - "$minor" >/dev/null 2>&1 <<'EOF' || continue
import sys, venv, ensurepip
sys.exit(sys.version_info[:2] != (3, int(sys.argv[1])))
EOF
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        done
    done
    return 1
}

# find_python NEWEST OLDEST: sets PYTHON; as root installs the venv module if that is all it lacks
find_python() {
    PYTHON=$(pick_python "$1" "$2") && return
    if is_root && command -v apt-get >/dev/null; then
        say "installing into the system with apt: python3-venv"
        apt_install python3-venv && PYTHON=$(pick_python "$1" "$2") && return
    fi
    say "no python3.$2 to python3.$1 with the venv module found"
    return 1
}

# install DIR ARGS... : pip install into an environment
install() {
    "$1/bin/python" -m pip install -qq --disable-pip-version-check "${@:2}"
}

python_version() {
    "$PYTHON" -c 'import platform; print(platform.python_version(), platform.machine())'
}

# make_venv EXTRA MARK: .venv in the clone; a `dev` one serves for both
make_venv() {
    local folder=$ROOT/.venv extra=$1 key
    find_python 12 10 || { say "hpcprof needs one of them"; exit 1; }
    key="$(cat "$ROOT/pyproject.toml" "$ROOT"/hpcprof/annotate/native/*.{c,h,py} | digest -) $(python_version)"
    for mark in "$folder/.complete-dev" "$folder/.complete${extra:+-$extra}"; do
        if [ "$(cat "$mark" 2>/dev/null)" = "$key" ]; then
            touch "$mark" # make compares its time with that of pyproject.toml
            return
        fi
    done
    say "installing hpcprof${extra:+ with its $extra tools} into $folder"
    if ! "$folder/bin/python" -c "import sys; sys.exit(sys.version_info[:2] != $(
        "$PYTHON" -c 'import sys; print(tuple(sys.version_info[:2]))'
    ))" 2>/dev/null; then
        rm -rf "$folder"
        "$PYTHON" -m venv "$folder"
    fi
    rm -f "$folder"/.complete*
    install "$folder" --editable "$ROOT${extra:+[$extra]}"
    echo "$key" >"$folder/.complete${extra:+-$extra}"
}

# record_env KEY DIR: make an environment known to the tests if it was finished
record_env() {
    if [ -e "$2/.complete" ]; then record "$1" "$2/bin/python"; else record "$1" ''; fi
}

# env_folder NAME: folder of an environment, a new one whenever its requirements change
env_folder() {
    local key
    key=$( (cat "$ROOT/tests/setup/requirements-$1.txt" && python_version) | digest -)
    echo "$CACHE/envs/$1-$key"
}

# fill_env DIR NAME: a fresh environment with what its requirement file names
fill_env() {
    rm -rf "$1"
    "$PYTHON" -m venv "$1" || return
    install "$1" --requirement "$ROOT/tests/setup/requirements-$2.txt"
}

# make_tensorflow: a user's environment without anything of ours
make_tensorflow() {
    find_python 12 10 || return 0
    local folder
    folder=$(env_folder tensorflow)
    if [ ! -e "$folder/.complete" ]; then
        say "installing TensorFlow into $folder"
        if fill_env "$folder" tensorflow; then
            touch "$folder/.complete"
        else
            say "TensorFlow could not be installed; tests that need it will be skipped"
        fi
    fi
    record_env HPCPROF_TEST_TF_PYTHON "$folder"
}

# nvtx_include DIR: folder with the NVTX headers, from nsys or from the tensorflow wheel
nvtx_include() {
    local header
    header=$(find "$CACHE"/nsys/*/target-linux-*/nvtx/include \
        "$1"/lib/python3*/site-packages/tensorflow/include/third_party \
        -path '*/nvtx3/nvToolsExt.h' 2>/dev/null | head -n 1)
    [ -n "$header" ] && dirname "$(dirname "$header")"
}

# horovod_wheel DIR: sets WHEEL, compiled against the environment in DIR when the cache has none
horovod_wheel() {
    local key folder include
    key=$({
        echo "horovod $HOROVOD"
        "$1/bin/python" -c 'import sys; print(sys.version_info[:2])'
        "$1/bin/python" -m pip list --format=freeze 2>/dev/null | grep -i '^tensorflow=='
        mpicxx --version | head -n 1
        ompi_info --version 2>/dev/null | head -n 1
        uname -m
    } | digest -)
    folder=$CACHE/wheels/$key
    if [ ! -e "$folder/.complete" ]; then
        include=$(nvtx_include "$1") || { say "no NVTX headers found"; return 1; }
        say "compiling Horovod $HOROVOD into $folder (about 5 minutes on two cores)"
        rm -rf "$folder"
        mkdir -p "$folder"
        # with NVTX asked for, a missing header is an error and not silence; pip's own cache may
        # hold a wheel for another TensorFlow; CMake 4 needs the policy for old third-party files
        env HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
            HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 \
            HOROVOD_WITH_NVTX=1 HOROVOD_NVTX_INCLUDE="$include" \
            CMAKE_POLICY_VERSION_MINIMUM=3.5 PATH="$1/bin:$PATH" \
            "$1/bin/python" -m pip wheel --no-build-isolation --no-deps \
            --no-cache-dir --no-binary=horovod --disable-pip-version-check --wheel-dir "$folder" "horovod==$HOROVOD" \
            >"$folder/build.log" 2>&1 ||
            { tail -n 30 "$folder/build.log" >&2; return 1; }
        touch "$folder/.complete"
    fi
    WHEEL=$(find "$folder" -name 'horovod-*.whl')
}

# add_horovod DIR: Horovod into an environment that holds what it needs
add_horovod() {
    local tool
    for tool in mpicxx cmake g++; do
        command -v "$tool" >/dev/null || { say "no $tool here"; return 1; }
    done
    horovod_wheel "$1" || return
    install "$1" --no-deps "$WHEEL" || return
    # built without one of them it imports all the same, and fails in the middle of a job
    "$1/bin/python" -c 'import sys, horovod.tensorflow as hvd
sys.exit(not (hvd.mpi_built() and hvd.gloo_built()))' 2>/dev/null ||
        { say "Horovod lacks MPI or Gloo"; return 1; }
    grep -q HorovodOps "$1"/lib/python3*/site-packages/horovod/tensorflow/mpi_lib*.so ||
        { say "Horovod lacks NVTX"; return 1; }
}

# make_training NAME KEY: an environment with TensorFlow, Horovod and their company
make_training() {
    find_python 11 10 || return 0 # there is no TensorFlow 2.15 for 3.12
    local folder
    folder=$(env_folder "$1")
    if [ ! -e "$folder/.complete" ]; then
        say "installing the training environment $1 (TensorFlow, Horovod) into $folder"
        if fill_env "$folder" "$1" && add_horovod "$folder"; then
            touch "$folder/.complete"
        else
            say "no training environment $1; tests that need it will be skipped"
        fi
    fi
    record_env "$2" "$folder"
}

lock envs
[ $# -gt 0 ] || set -- venv-dev tensorflow keras3 horovod
for part in "$@"; do
    case $part in
    venv) make_venv html ;; # the demo shows its page
    venv-dev) make_venv dev ;;
    tensorflow) make_tensorflow ;;
    keras3) make_training keras3 HPCPROF_TEST_KERAS3_PYTHON ;;
    horovod) make_training horovod HPCPROF_TEST_TRAIN_PYTHON ;;
    *) say "unknown part $part"; exit 2 ;;
    esac
done
