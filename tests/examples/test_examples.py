import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lipt import Subset
from lipt.data.loading import open_dataset
from lipt.models.head import forward_with_features
from lipt.models.registry import build_model
from tests.cluster import Cluster
from tests.examples.conftest import EXAMPLES, with_examples

Run = Callable[..., subprocess.CompletedProcess[str]]

# Of 1,797 digits; a tenth.
NUM_CHOSEN = 180

# A transformer on one core takes long.
SMALLEST_RUN = {
    "learners": {"num_learners": 1, "num_steps": 2, "num_minibatches": 1, "batch_size": 32}
}


def test_every_example_is_run_here_and_named_in_their_readme() -> None:
    here = Path(__file__).read_text("utf-8")
    named = (EXAMPLES / "README.md").read_text("utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"`{path.name}`" in named
        assert f'"{path.name}"' in here or path.name == "mine.py"


@pytest.mark.smoke
def test_defaults_fit_the_data_of_the_readme(served: Cluster) -> None:
    with served.client() as client:
        oldest = client.runs()[-1]
    # Of 1,797 digits 200 are held out; 2 learners share the rest: 1597 // (2 x 32).
    assert oldest.config.learners.batch_size == 24
    assert "learners.batch_size 24 in place of 64" in oldest.lowered_defaults


SCORED = rf"(?s:.*){NUM_CHOSEN} examples, as the coordinator: True"
# A cluster of its own, that reports to nobody and makes no token in the home folder.
RAY = {"RAY_ADDRESS": "local", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


@pytest.mark.parametrize(
    ("name", "environment", "said"),
    [
        (
            "own_strategy.py",
            {},
            r"<Subset of 180 of 1,797 \(10.0%\) examples; strategy: doubted;.*",
        ),
        (
            "weighted.py",
            {"EPOCHS": "2"},
            r"180 examples, the heaviest stands for (?!1,)\d+, loss .*",
        ),
        ("soft_labels.py", {}, r"9\d\.\d% right"),
        # Past epochs 20 and 40; by chance the loss is ln 10 = 2.3.
        pytest.param(
            *("train.py", {"EPOCHS": "41"}, r"loss 0\.\d+, 2 times selected again"),
            marks=pytest.mark.smoke,
        ),
        # Past epochs 5 and 10.
        ("with_lightning.py", {"EPOCHS": "11"}, r"(?s:.*)2 times selected again"),
        ("with_huggingface.py", {"EPOCHS": "11"}, r"(?s:.*)2 times selected again"),
        # Nine epochs of 180 are 1,620 of 1,797 examples; in the tenth the rest is seen.
        (
            "repeated_random.py",
            {"EPOCHS": "9"},
            r"180 examples an epoch, 1620 of 1797 seen, loss .*",
        ),
        (
            "repeated_random.py",
            {"EPOCHS": "10"},
            r"180 examples an epoch, 1797 of 1797 seen, loss .*",
        ),
        ("own_features.py", {}, r"100 examples by kcenter on \[1797, 16\] features"),
        ("dask_scores.py", {}, SCORED),
        ("ray_scores.py", RAY, SCORED),
        ("spark_scores.py", {}, SCORED),
    ],
)
def test_an_example_ends_with_what_it_found(
    run_example: Run, name: str, environment: dict[str, str], said: str
) -> None:
    assert re.fullmatch(said, run_example(name, **environment).stdout.rstrip("\n"))


def test_the_training_example_resumes(run_example: Run) -> None:
    assert run_example("resumable.py", EPOCHS="3").stdout.startswith("epochs 0 to 2, ")
    assert run_example("resumable.py", EPOCHS="7").stdout.startswith("epochs 3 to 6, ")


def test_the_data_is_diagnosed(run_example: Run) -> None:
    first, *issues, last = run_example("diagnose.py").stdout.splitlines()
    assert first.startswith("<Diagnosis of 1,797 examples")
    assert all(re.fullmatch(r"row \d+: labelled \d, looks like \d", line) for line in issues)
    match = re.fullmatch(r"(\d+) of 1797 examples are left", last)
    assert match is not None, last
    # Labels of digits are right, but of 64 pixels a tenth looks like another one.
    assert 1500 < int(match[1]) <= 1797


@pytest.mark.smoke
def test_a_subset_is_chosen_in_one_call(run_alone: Run) -> None:
    said = run_alone("one_call.py").stdout
    match = re.fullmatch(r"140 of 1400 examples, ([\d.]+)% on the test set\n", said)
    assert match is not None, said
    assert float(match[1]) > 70  # chance is 10


def test_arrays_give_row_numbers(run_alone: Run, tmp_path: Path) -> None:
    said = run_alone("your_arrays.py").stdout
    assert re.fullmatch(r"(60 images of \d+ classes\n){3}", said), said
    assert len(np.load(tmp_path / "subset.npy")) == NUM_CHOSEN


def test_one_pre_training_gives_several_subsets(run_alone: Run) -> None:
    made, *said = run_alone("several_subsets.py", STEPS="1").stdout.splitlines()
    assert re.fullmatch(r"theta_p is made of [12] of 2 learners", made)
    assert [line.split(",")[0] for line in said] == [
        f"{strategy}: {NUM_CHOSEN} examples" for strategy in ("el2n", "craig", "uniform")
    ]


def test_sources_get_shares_for_a_target(run_alone: Run) -> None:
    said = run_alone("mixture.py").stdout
    shares = {
        name: float(share)
        for name, share in re.findall(r"^(\w.*?) +(0\.\d+) +0\.", said, re.MULTILINE)
    }
    assert max(shares, key=shares.__getitem__) == "inverted"
    assert "Better than equal shares" in said
    assert said.endswith("500 examples to train on\n")


def test_sources_of_texts_get_shares_for_a_causal_model(run_alone: Run) -> None:
    said = run_alone("causal_mixture.py").stdout
    shares = re.findall(r"^(\w.*?) +(0\.\d+) +0\.", said, re.MULTILINE)
    assert max(shares, key=lambda named: float(named[1]))[0] == "reversed"
    assert "One source alone, reversed, serves this target" in said


def test_right_answers_are_chosen_for_a_causal_model(run_alone: Run) -> None:
    said = run_alone("causal_selection.py").stdout
    (right,) = re.findall(r"^(\d+) of 100 answers are right", said, re.MULTILINE)
    assert int(right) > 80


def test_trl_trains_on_the_chosen_rows(run_alone: Run) -> None:
    said = run_alone("causal_trl.py", HF_HUB_OFFLINE="1").stdout
    chosen = re.search(r"^64 chosen examples, (\d+) of them right", said, re.MULTILINE)
    losses = re.search(r"^loss (\d\.\d+), after \d+ steps (\d\.\d+)", said, re.MULTILINE)
    assert chosen is not None, said
    assert losses is not None, said
    assert int(chosen[1]) > 60
    assert float(losses[2]) < float(losses[1]) - 1


def test_an_adapter_of_a_mixture_is_saved(run_alone: Run) -> None:
    pytest.importorskip("peft")
    said = run_alone("causal_adapters.py").stdout
    shares = {name: float(share) for name, share in re.findall(r"'(\w+)': (\d\.[\de-]+)", said)}
    assert shares["capitals"] > shares["reversed"]
    assert "['adapter_config.json', 'adapter_model.safetensors']" in said


# A notebook, cell by cell, and what the last line of each would show.
NOTEBOOK = """
import ast, json, sys
cells, names = json.load(open(sys.argv[1]))["cells"], {}
for cell in cells:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
        print(getattr(value, "_repr_html_", lambda: "")() or "")
"""


@pytest.mark.parametrize("name", ["one_call.ipynb", "diagnose.ipynb"])
def test_a_notebook_runs_and_shows_tables_and_pictures(
    name: str, run_alone: Run, tmp_path: Path
) -> None:
    (tmp_path / "run.py").write_text(NOTEBOOK)
    said = run_alone(str(tmp_path / "run.py"), str(EXAMPLES / name)).stdout
    # A subset is a table, a diagnosis several, with the labels that look wrong: three are.
    tables, pictures = {"one_call.ipynb": (1, 0), "diagnose.ipynb": (2, 3)}[name]
    assert said.count("<table>") >= tables
    assert said.count("<img ") == pictures
    assert f'"{name}"' in Path(__file__).read_text("utf-8")


def test_notebooks_are_kept_without_what_they_showed() -> None:
    for path in EXAMPLES.glob("*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def test_a_subset_is_fetched_saved_and_trained_on(run_example: Run, tmp_path: Path) -> None:
    said = run_example("one_subset.py", EPOCHS="2").stdout
    subset = Subset.load(tmp_path / "subset.npy")
    assert len(np.load(tmp_path / "subset.npy")) == NUM_CHOSEN
    assert said.startswith(f"{NUM_CHOSEN} of 1797 examples, digest {subset.digest[:12]}, loss ")


def test_the_recipe_trains_on_a_subset(run_example: Run, tmp_path: Path) -> None:
    # 180 examples in batches of 64 are 3 steps.
    said = run_example("recipe.py", EPOCHS="2").stdout
    assert re.fullmatch(r"6 steps, [\d.]+% on the subset\n", said) is not None
    assert (tmp_path / "recipe.ckpt").is_file()


def test_a_backbone_of_other_classes_is_fine_tuned(run_example: Run) -> None:
    note, said = run_example("fine_tuning.py", EPOCHS="20").stdout.splitlines()
    # Two of nine tensors are the head's.
    assert note == ("theta* begins with 7 tensors of the weights given; new: '4.weight', '4.bias'.")
    match = re.fullmatch(rf"{NUM_CHOSEN} examples, (\d+) bytes from learners, ([\d.]+)%", said)
    assert match is not None, said
    # Four heads of 1,152 x 10 numbers.
    assert int(match[1]) < 4 * (4 * 11_530 + 2_000)
    assert float(match[2]) > 80


def test_a_run_is_started_and_followed(run_example: Run, tmp_path: Path) -> None:
    said = run_example("follow_a_run.py").stdout.splitlines()
    assert said[-2].startswith("ready: 2 of 2 learners")
    assert re.fullmatch(r"soup [\d.]+%, kept [12] learners", said[-1]) is not None
    assert (tmp_path / "theta_p.safetensors").stat().st_size > 0


# What each says where everything went well, the least that it should have learned, and what a
# coordinator serves it. The most frequent of eight classes of text has 17%; who always tells the
# mean of the numbers has 0%.
OTHER_DATA = {
    "table.py": (r"46 of 456 rows: ([\d.]+)% on 113 others", 75.0, "breast_cancer-train", "mlp"),
    "text.py": (r"652 of 2172 texts: ([\d.]+)% on 541 others", 20.0, "pydocs-train", "text:tiny"),
    "features.py": (
        *(r"144 of 1442 rows: ([\d.]+)% on 355 others", 50.0),
        *("features:train.safetensors", "linear"),
    ),
    "regression.py": (r"106 of 353: R² ([\d.-]+)% on 89 others", 20.0, "regression:train", "mlp"),
}


# What each says of data in memory, and the least that it should have learned.
IN_MEMORY: dict[str, tuple[str, float]] = {
    "frame.py": (r"36 of 120 rows: ([\d.]+)% on 58 others", 80.0),
    "sentences.py": (r"\d+ of \d+ texts: ([\d.]+)% of all; (?:os|socket): .*", 60.0),
    **{name: (words, least) for name, (words, least, _, _) in OTHER_DATA.items()},
}


def require_learned(name: str, said: str) -> None:
    words, fewest_right = IN_MEMORY[name]
    match = re.fullmatch(words, said.splitlines()[0])
    assert match is not None, said
    assert float(match[1]) > fewest_right


@pytest.mark.parametrize("name", IN_MEMORY)
def test_tables_and_texts_can_be_selected_from_in_one_call(run_alone: Run, name: str) -> None:
    require_learned(name, run_alone(name, EPOCHS="6").stdout)


@pytest.mark.parametrize("name", OTHER_DATA)
def test_tables_and_texts_can_be_selected_from_by_the_service(
    run_example: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where the example has its files
    if name == "features.py":
        _write_features()
    with Cluster(tmp_path) as cluster:
        environment = {"PYTHONPATH": with_examples()}
        data, model = OTHER_DATA[name][2:]
        cluster.start_coordinator("--data", data, "--model", model, environment=environment)
        cluster.start_worker("one")
        cluster.start_worker("two")
        with cluster.client() as client:
            client.wait(client.start_run(SMALLEST_RUN).run_id)
        said = run_example(name, LIPT_COORDINATOR=cluster.address, EPOCHS="6").stdout
    require_learned(name, said)


def test_wrong_captions_are_dropped_by_the_towers_beside_them(run_alone: Run) -> None:
    assert {"pairs.py", "towers.py"} <= {path.name for path in EXAMPLES.iterdir()}
    said = run_alone("pairs.py", XDG_CACHE_HOME="cache").stdout.splitlines()
    assert said == [
        "36 of 40 pairs are kept; dropped:",
        # Row 3, white, has the caption of the colour after it, and so on.
        "pairs/03.png: something red",
        "pairs/13.png: something blue",
        "pairs/23.png: something red",
        "pairs/33.png: something blue",
    ]


def _write_features() -> None:
    """As the example writes them, whose files are the same at every run."""
    digits = open_dataset("digits-train")
    pixels = digits.images(torch.arange(len(digits))).flatten(1).float()
    save_file({"X": pixels, "y": digits.labels_N}, "train.safetensors")


def test_a_hugging_face_classifier_takes_texts_by_its_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    from tests.causal_folders import write_words

    write_words(tmp_path / "t.json", "[PAD]", "[UNK]", "good", "bad", unknown="[UNK]")
    (tmp_path / "t.csv").write_text("review,stars\nso good,5\nbad,1\n")
    monkeypatch.syspath_prepend(EXAMPLES)
    assert "bert.py" in {path.name for path in EXAMPLES.iterdir()}
    options = f"text=review&label=stars&max_length=8&tokenizer={tmp_path / 't.json'}"
    data = open_dataset(f"csv:{tmp_path / 't.csv'}?{options}&names=huggingface")
    model = build_model(
        "bert:model", num_classes=2, inputs=data.inputs, seed=0, allowed_modules=["bert"]
    ).eval()
    examples = data.examples(torch.arange(2))
    assert isinstance(examples, dict)
    assert examples["input_ids"][0].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]
    logits_NC, features_ND = forward_with_features(model, examples)
    assert (logits_NC.shape, features_ND.shape) == ((2, 2), (2, 64))


ROOT = EXAMPLES.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def python_blocks(page: Path) -> list[tuple[str, str]]:
    """What stands behind the language of a page's Python blocks, and their text."""
    blocks = r"^```python *(.*?)\n(.*?)^```$"
    return re.findall(blocks, page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_readme_and_the_training_script_keep_to_their_length() -> None:
    for path, most in ((README, 150), (EXAMPLES / "train.py", 25)):
        assert len(path.read_text("utf-8").splitlines()) <= most


def test_python_in_the_readme_is_an_example_word_for_word() -> None:
    blocks = dict(python_blocks(README))
    assert set(blocks) == {"your_arrays.py"}
    for name, text in blocks.items():
        assert text == (EXAMPLES / name).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_a_page_is_included_from_a_file_that_is_tested(page: Path) -> None:
    for _, text in python_blocks(page):
        included = re.fullmatch(r'--8<-- "(.+?)(?::\w+)?"\n', text)
        assert included is not None, text
        assert (ROOT / included[1]).is_file()
