import os
import subprocess
import sys

import pytest

from lipt.common.config.environment import read_variables, require_known_variables, variables_of
from lipt.common.errors import ConfigError
from lipt.coordinator.settings import CoordinatorSettings
from lipt.worker.settings import PoolSettings, WorkerSettings


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("LIPT_REQUIRE_TOKENS", "LIPT_REQUIRE_TOKEN"),
        ("LIPT_RQUIRE_TOKEN", "LIPT_REQUIRE_TOKEN"),
        ("LIPT__REQUIRE_TOKEN", "LIPT_REQUIRE_TOKEN"),
        ("lipt_require_token", "LIPT_REQUIRE_TOKEN"),
        ("Lipt_Insecure", "LIPT_INSECURE"),
        ("LIPT_LEARNERS__NUM_STEPS", "LIPT_RUN__LEARNERS__NUM_STEPS"),
        ("LIPT_RUN__LEARNERS__NUM_STEP", "LIPT_RUN__LEARNERS__NUM_STEPS"),
        ("LIPT_RUN_LEARNERS_NUM_STEPS", "LIPT_RUN__LEARNERS__NUM_STEPS"),
        ("LIPT_LIMITS__PER_PEER__MAX_CALL", "LIPT_LIMITS__PER_PEER__MAX_CALLS"),
        # Flags of these names set them.
        ("LIPT_MODEL", "LIPT_RUN__MODEL"),
        ("LIPT_IMAGE_SIZE", "LIPT_DATASET__IMAGE_SIZE"),
        ("LIPT_TOKENFILE", "LIPT_TOKEN_FILE"),
        ("LIPT_WORKER", "LIPT_WORKERS"),
        ("LIPT_LISTEN_PORT", "LIPT_LISTEN"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_known(variable: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"{variable} .*Did you mean {nearest}\?$") as refused:
        require_known_variables({variable: "true", "LIPT_DEVICE": "cpu"})
    assert len(str(refused.value)) <= 200


def test_variables_of_every_process_and_of_kubernetes_are_known_to_all() -> None:
    settings = {
        name
        for model in (CoordinatorSettings, WorkerSettings, PoolSettings)
        for name in variables_of(model)
    }
    assert {"LIPT_REQUIRE_TOKEN", "LIPT_CACHE_BYTES", "LIPT_IDLE_SECONDS"} <= settings
    others = ("LIPT_WAIT", "LIPT_DATA", "LIPT_HOME", "PATH", "LIPTON", "MY_LIPT_THING")
    # As Kubernetes writes them for Services named lipt-coordinator and lipt.
    services = {
        "LIPT_COORDINATOR_SERVICE_HOST": "10.0.0.11",
        "LIPT_COORDINATOR_SERVICE_PORT": "50051",
        "LIPT_COORDINATOR_SERVICE_PORT_GRPC": "50051",
        "LIPT_COORDINATOR_PORT": "tcp://10.0.0.11:50051",
        "LIPT_COORDINATOR_PORT_50051_TCP": "tcp://10.0.0.11:50051",
        "LIPT_COORDINATOR_PORT_50051_TCP_PROTO": "tcp",
        "LIPT_COORDINATOR_PORT_50051_TCP_PORT": "50051",
        "LIPT_COORDINATOR_PORT_50051_TCP_ADDR": "10.0.0.11",
        "LIPT_SERVICE_HOST": "10.0.0.12",
        "LIPT_PORT": "tcp://10.0.0.12:80",
    }
    require_known_variables(dict.fromkeys((*settings, *others), "x") | services)


def test_values_are_nested_by_their_section_and_lists_read_as_toml() -> None:
    environment = {
        "LIPT_RUN__LEARNERS__NUM_STEPS": "5",
        "LIPT_RUN__SEED": "7",
        "LIPT_ALLOW_MODULES": '["mine", "yours"]',
        "LIPT_DATASET__SOURCE": "[1]",
        "LIPT_CACHE_BYTES": "9",  # a worker's
    }
    assert read_variables(CoordinatorSettings, environment) == {
        "run": {"learners": {"num_steps": "5"}, "seed": "7"},
        "allow_modules": ["mine", "yours"],
        "dataset": {"source": "[1]"},
    }


def test_an_empty_variable_is_refused() -> None:
    # The state directory "" would be the present one.
    with pytest.raises(ConfigError, match=r"LIPT_STATE_DIR is empty\. Unset it"):
        read_variables(CoordinatorSettings, {"LIPT_STATE_DIR": ""})


@pytest.mark.parametrize(
    "command",
    [
        ("lipt.coordinator", "--data", "digits"),
        ("lipt.worker",),
        ("lipt.worker.pool.up", "--workers", "1"),
        ("lipt.cli", "strategies"),
        ("lipt.cli", "state", "check"),
    ],
)
def test_every_program_ends_at_an_unknown_variable(command: tuple[str, ...]) -> None:
    module, *arguments = command
    program = [sys.executable, "-m", module]
    if module.endswith("up"):
        program = [sys.executable, "-c", "from lipt.worker.pool.up import main; main()"]
    done = subprocess.run(
        [*program, *arguments],
        env=os.environ | {"LIPT_REQUIRE_TOKENS": "true"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Did you mean LIPT_REQUIRE_TOKEN?" in done.stderr
    assert len(done.stderr.splitlines()) == 1
