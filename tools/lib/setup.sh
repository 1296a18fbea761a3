# Shared by tools/quickstart, tools/test and .ci/run: installing what is missing, and timing stages. Sourced by bash.
# shellcheck shell=bash

# The packages of Debian 12 that ktune is built with: the one list. Groups: build (compile and run), test, lint,
# wheels (findCuda).
ktunePackagesBuild=(
  cmake ninja-build g++ ccache git python3
  llvm-22-dev llvm-22-tools libmlir-22-dev mlir-22-tools lld-22 liblld-22-dev zlib1g-dev
  libtbb-dev librocksdb-dev libsnappy-dev liblz4-dev libzstd-dev libbz2-dev
  nlohmann-json3-dev libcli11-dev libxxhash-dev
  libgtest-dev
)
ktunePackagesTest=(binutils libopenblas0-pthread)
ktunePackagesLint=(clang-format-14 clang-tidy-14)
ktunePackagesWheels=(python3-pip)

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# ---- Stages: what is happening, and how long it took.

stageNames=()
stageSeconds=()
stageStart=0
runStart=$(date +%s.%N)

secondsSince() { awk -v a="$1" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }'; }

beginStage() {
  stageNames+=("$1")
  stageStart=$(date +%s.%N)
  printf '\n== %s\n' "$1"
}

endStage() {
  stageSeconds+=("$(secondsSince "$stageStart")")
  printf -- '-- %s: %s s\n' "${stageNames[-1]}" "${stageSeconds[-1]}"
}

# At the end of every run, also one that fails: where the time went, and where it stopped.
printStages() {
  local code=$? i
  if [ "${#stageNames[@]}" -eq 0 ]; then return; fi
  printf '\n%-44s %9s\n' stage seconds
  for i in "${!stageNames[@]}"; do
    if [ -z "${stageSeconds[$i]:-}" ]; then
      printf '%-44s %9s  failed\n' "${stageNames[$i]}" "$(secondsSince "$stageStart")"
      continue
    fi
    printf '%-44s %9s\n' "${stageNames[$i]}" "${stageSeconds[$i]}"
  done
  printf '%-44s %9s\n' total "$(secondsSince "$runStart")"
  return "$code"
}
trap printStages EXIT

# ---- Packages.

isInstalled() { dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

# installMissing GROUP...: nothing is asked of the network when everything is there.
installMissing() {
  local group package wanted=() missing=()
  for group in "$@"; do
    case "$group" in
      build) wanted+=("${ktunePackagesBuild[@]}") ;;
      test) wanted+=("${ktunePackagesTest[@]}") ;;
      lint) wanted+=("${ktunePackagesLint[@]}") ;;
      wheels) wanted+=("${ktunePackagesWheels[@]}") ;;
      *) die "no package group '$group'" ;;
    esac
  done
  command -v dpkg-query >/dev/null || die "this set-up is for Debian 12. Elsewhere install by hand what these packages hold, then use CMake (see CONTRIBUTING.md): ${wanted[*]}"
  for package in "${wanted[@]}"; do isInstalled "$package" || missing+=("$package"); done
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "all ${#wanted[@]} packages are there"
    return
  fi
  local asRoot=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing packages: ${missing[*]}
Installing them needs root or sudo. As root:
  apt-get update && apt-get install --no-install-recommends ${missing[*]}"
    asRoot=(sudo)
  fi
  echo "installing: ${missing[*]}"
  "${asRoot[@]}" apt-get update -q </dev/null ||
    die "apt-get update failed (see above). Check the network and /etc/apt/sources.list*, then run this again."
  # bookworm's LLVM 22 comes from its security archive, which every ordinary installation has.
  "${asRoot[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" \
    </dev/null ||
    die "apt-get could not install the packages above. LLVM 22 is in Debian 12 (bookworm) main through bookworm-security; is that in your sources?"
}

# ---- CUDA: cuda.h, nvrtc.h and NVRTC (docs/cuda.md), from a toolkit where there is one, else from NVIDIA's wheels.

cudaWheels=(nvidia-cuda-runtime nvidia-cuda-nvrtc)
cudaWheelsVersion="13.0.*"
cudaWheelsFolder=build/cuda-wheels

# findCuda [install]: CUDA_HOME names the wheels' folder where they stand in for a toolkit; CMake and ktune look there.
findCuda() {
  local home=$PWD/$cudaWheelsFolder/nvidia/cu13
  if [ -e "${CUDA_HOME:-/usr/local/cuda}/include/nvrtc.h" ]; then
    echo "CUDA: the toolkit in ${CUDA_HOME:-/usr/local/cuda}"
    return
  fi
  if [ "${1:-}" = install ] && ! isCudaFolder "$home"; then
    echo "CUDA: installing NVIDIA's wheels into $cudaWheelsFolder"  # Nothing of the system's Python changes.
    ({ python3 -m pip --version >/dev/null 2>&1 || installMissing wheels; } &&
      python3 -m pip install -q --no-deps --disable-pip-version-check --root-user-action=ignore \
        --upgrade --target "$cudaWheelsFolder" "${cudaWheels[@]/%/==$cudaWheelsVersion}" </dev/null) || true
  fi
  if isCudaFolder "$home"; then
    export CUDA_HOME=$home
    echo "CUDA: NVIDIA's wheels in $CUDA_HOME"
  else
    echo "CUDA: neither a toolkit nor NVIDIA's wheels (${cudaWheels[*]}) can be had; going on without the CUDA device"
  fi
}
isCudaFolder() { [ -e "$1/include/cuda.h" ] && [ -e "$1/include/nvrtc.h" ] && [ -e "$1/lib/libnvrtc.so.13" ]; }

# ---- Building.

# Compilations at the same time: one per core, but no more than memory allows (a unit with MLIR headers takes 2 GB).
buildJobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 2000000) }' /proc/meminfo)
  if [ "$memory" -lt 1 ]; then memory=1; fi
  if [ "$memory" -lt "$cores" ]; then echo "$memory"; else echo "$cores"; fi
}

# configurePreset PRESET [OPTION...]
configurePreset() {
  local preset=$1
  shift
  cmake --preset "$preset" "$@" </dev/null
}

# buildPreset PRESET [TARGET...]
buildPreset() {
  local preset=$1
  shift
  local targets=()
  if [ $# -gt 0 ]; then targets=(--target "$@"); fi
  cmake --build --preset "$preset" -j "$(buildJobs)" "${targets[@]}" </dev/null
}
