from collections.abc import Callable
from pathlib import Path

import pytest

from lipt.common.errors import ConfigError, FactoryNotAllowedError, MissingExtraError
from lipt.common.imports import (
    folders_of,
    import_extra,
    is_allowed,
    load_factory,
    module_of,
    modules_of,
    require_importable,
)

Write = Callable[[str, str], None]


@pytest.mark.parametrize(
    "spec", ["m:f", "package.module:factory", "_m.n2:_f", "modèle:usine", "a.b.c:D"]
)
def test_a_factory_name_is_module_colon_attribute(spec: str) -> None:
    assert module_of(spec) == spec.partition(":")[0]


@pytest.mark.parametrize("spec", ["", "m", "m:f.g", "m:f:g", "2m:f", "m:f\n"])
def test_other_factory_names_are_refused(spec: str) -> None:
    assert not module_of(spec)
    with pytest.raises(ConfigError, match=r"Write it as package\.module:factory"):
        load_factory(spec, allowed_modules=("m",))


@pytest.mark.parametrize("allowed", ["shop", "shop.models", "shop.models.nets"])
def test_allowing_a_module_allows_its_submodules(write_module: Write, allowed: str) -> None:
    write_module("shop.__init__", "")
    write_module("shop.models.__init__", "")
    write_module("shop.models.nets", "build = list\n")
    assert load_factory("shop.models.nets:build", allowed_modules=[allowed]) is list


@pytest.mark.parametrize(
    "allowed", [[], ["other"], ["sho"], ["shop.models.ne"], ["shop.models.nets.x"]]
)
def test_modules_without_a_flag_are_refused(write_module: Write, allowed: list[str]) -> None:
    write_module("shop.models.nets", "raise SystemExit('imported')\n")
    with pytest.raises(
        FactoryNotAllowedError, match=r"--allow-module shop\.models\.nets"
    ) as caught:
        load_factory("shop.models.nets:build", allowed_modules=allowed)
    assert f"allowed: {', '.join(allowed) or 'none'}" in str(caught.value)


def test_a_missing_module_differs_from_its_missing_dependency(write_module: Write) -> None:
    with pytest.raises(ConfigError, match=r"no module 'absent_module' in .*install it"):
        load_factory("absent_module.sub:build", allowed_modules=["absent_module"])
    write_module("needs_other", "import absent_dependency\n")
    with pytest.raises(ConfigError, match=r"failed with ModuleNotFoundError.*absent_dependency"):
        load_factory("needs_other:build", allowed_modules=["needs_other"])


def test_a_missing_extra_says_how_to_install_it_and_a_broken_one_is_not_called_missing(
    write_module: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tea = {"package": "kettle", "extra": "hot", "needed_for": "tea"}
    with pytest.raises(MissingExtraError, match=r"tea needs .*'kettle'.*pip install '\.\[hot\]'"):
        import_extra("absent_kettle.boil", **tea)
    write_module("broken_extra", "import absent_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        import_extra("broken_extra", **tea)


def test_allowed_modules_that_fail_to_import_are_named(write_module: Write) -> None:
    write_module("whole", "")
    write_module("broken_module", "raise OSError('no such device')\n")
    require_importable(["whole"])
    with pytest.raises(ConfigError, match=r"--allow-module absent_one: there is no module 'absent"):
        require_importable(["whole", "absent_one"])
    with pytest.raises(ConfigError, match=r"--allow-module broken_module: .*no such device"):
        require_importable(["broken_module"])


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("package.module:factory", ("package.module",)),
        ("digits", ()),
        ("csv:table.csv?label=a:b", ()),
        ("pairs:/data?image_tower=one:f&size=24&text_tower=two.three:g", ("one", "two.three")),
        ("pairs:/data?image=one:f", ()),
        ("imagefolder:/data?image_tower=one:f", ()),
    ],
)
def test_a_source_name_gives_its_module_or_its_towers(name: str, modules: tuple[str, ...]) -> None:
    assert modules_of(name) == modules


def test_a_causal_models_name_has_a_folder_and_perhaps_an_adapters() -> None:
    home = str(Path.home())
    assert folders_of("causal:/m/base/") == ("/m/base",)
    assert folders_of("causal:~/base@/a/../b") == (f"{home}/base", "/b")
    assert folders_of("text:causal") == ()
    # It is allowed by its whole name, and no module by a name that looks like one.
    assert modules_of("causal:folder") == ("causal:folder",)
    require_importable(["causal:folder"])


@pytest.mark.parametrize(
    ("allowed", "is_one"),
    [
        (["causal:/m/base@/a"], True),
        (["causal:/m", "causal:/a"], True),
        (["causal:/m"], False),
        (["causal:/m/base/x", "causal:/a"], False),
        (["causal:/m/bas", "causal:/a"], False),
        (["m", "base"], False),
        ([], False),
    ],
)
def test_all_folders_of_a_model_have_to_be_allowed(allowed: list[str], is_one: bool) -> None:
    assert is_allowed("causal:/m/./base@/a", allowed) is is_one
    assert not is_allowed("causal:/m/../etc", allowed)
