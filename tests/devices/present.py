"""Whether there is a CUDA device to test on: `make test-gpu` must not pass without one.

python -m tests.devices.present
"""

import sys

import torch


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit(
            f"torch {torch.__version__} finds no CUDA device on this machine, so nothing was "
            "tested. Run `make test-gpu` where there is one, with a build of torch for CUDA."
        )
    for index in range(torch.cuda.device_count()):
        print(f"cuda:{index}: {torch.cuda.get_device_name(index)}")  # noqa: T201


if __name__ == "__main__":
    main()
