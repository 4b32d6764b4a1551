#!/usr/bin/env bash
# Add packages to an environment, which is made on demand: deploy/environment.sh VENV EXTRAS SIZE.
#
# PYTHON is the interpreter of a new environment, CONSTRAINTS the file of tested versions. Without
# a GPU PyTorch's build for CPUs is installed, if the registry or TORCH_INDEX has one that fits.
set -euo pipefail
venv=$1 extras=$2 size=$3
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
index=(${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"})

pinned() { sed -n "s/^$1==\(.*\)/$1==\1+cpu/p" "$CONSTRAINTS"; }

has_cpu_build() {
    "${pip[@]}" install --quiet --dry-run --no-deps "${index[@]}" "$@" > /dev/null 2>&1
}

[ -x "$venv/bin/python" ] || "$PYTHON" -m venv "$venv"
cpu_build=("$(pinned torch)" "$(pinned torchvision)")
if "$venv/bin/python" -c 'import importlib.util as u; exit(u.find_spec("torch") is None)'; then
    echo "Adding lipt[$extras] to $venv."
elif ! nvidia-smi -L > /dev/null 2>&1 && has_cpu_build "${cpu_build[@]}"; then
    echo "Installing lipt[$extras] into $venv, without a GPU: PyTorch's build for CPUs takes 0.7 GB."
    "${pip[@]}" install "${index[@]}" "${cpu_build[@]}"
else
    echo "Installing lipt[$extras] into $venv: $size on disk, 5.5 GB of it PyTorch with CUDA."
    echo "The download is 2.7 GB: one minute at 50 MB/s, five at 10 MB/s, and one to unpack it."
fi
"${pip[@]}" install --editable ".[$extras]" --constraint "$CONSTRAINTS" "${index[@]}"
