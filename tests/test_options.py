"""An option is declared once, and constructors, files and the command line follow."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, fields

import pytest
import typer
from torch import nn
from typer.testing import CliRunner

import marquis as mq
from marquis import online, run
from marquis.autoencoders import KINDS, LaplacianAutoencoder, ModelSpec, linearised
from marquis.cli.options import with_options
from marquis.cli.train import app
from marquis.errors import DataError
from marquis.online import PRESETS, OnlineSettings
from marquis.options import option, options_of, rename_options, takes_options
from marquis.run import TrainingSettings


@dataclass(frozen=True)
class Colours:
    shade: float = option(0.5, "How dark.")
    name: str | None = option(None, "What it is called.", shown="grey")
    many: tuple[str, ...] = option((), "Several.")
    level: float | str = option("auto", "A number or a word.")
    apart: int = 3  # no option


@takes_options(Colours)
class Painter:
    """Paint.

    Args:
        wall: What to paint.
    """

    def __init__(self, wall, shade=None, *, coats=2, **options):
        self.options = {"shade": shade, **options}


def test_a_constructor_shows_the_options_in_place_of_the_star():
    signature = inspect.signature(Painter)
    shown = {name: parameter.default for name, parameter in signature.parameters.items()}
    empty = inspect.Parameter.empty
    assert shown == {"wall": empty, "shade": 0.5, "coats": 2, "name": None, "many": (), "level": "auto"}
    assert "level: A number or a word." in str(Painter.__doc__)
    assert Painter("w", level=3).options == {"shade": None, "level": 3}  # nothing is filled in


def test_a_command_has_an_option_for_each_field():
    seen = {}
    command = typer.Typer()

    @command.command()
    @with_options({"Paint": Colours})
    def paint(wall: str, **options):
        seen.update(options, wall=wall)

    call = CliRunner().invoke
    assert call(command, ["w", "--many", "a", "--many", "b", "--level", "0.5", "--shade", "2"]).exit_code == 0
    assert seen == {"wall": "w", "many": ["a", "b"], "level": 0.5, "shade": 2.0, "name": None}
    assert call(command, ["w", "--level", "high"]).exit_code == 0 and seen["level"] == "high"
    assert call(command, ["w", "--shade", "dark"]).exit_code == 2
    assert "How dark." in call(command, ["--help"]).output


def test_renamed_options():
    with pytest.warns(DeprecationWarning, match="t= is deprecated; write temp="):
        assert rename_options({"t": 1, "u": 2}, {"t": "temp"}, "it") == {"temp": 1, "u": 2}
    assert rename_options({"t": None, "temp": 3}, {"t": "temp"}, "it") == {"temp": 3}
    with pytest.raises(DataError, match="temp= only"):
        rename_options({"t": 1, "temp": 3}, {"t": "temp"}, "it")


# The online learner


def network() -> nn.Module:
    return nn.Linear(3, 2)


def test_every_field_of_the_online_settings_is_an_option_everywhere():
    names = [entry.name for entry in fields(OnlineSettings)]
    assert list(options_of(OnlineSettings)) == names
    assert KINDS["lae"].options == ("preset", *names)
    for owner in (mq.OnlineLaplace, LaplacianAutoencoder):
        shown = inspect.signature(owner).parameters
        assert all(shown[name].default == getattr(OnlineSettings(), name) for name in names)
    command = typer.main.get_command(app)
    assert {*names, *options_of(TrainingSettings), "preset"} <= {parameter.name for parameter in command.params}


def test_options_replace_those_of_a_preset_and_none_keeps_them():
    learner = mq.OnlineLaplace(network(), num_data=5, preset="paper-code", factor=2.0, initial=None)
    assert (learner.settings.factor, learner.settings.initial) == (2.0, "data")
    same = mq.OnlineLaplace(network(), num_data=5, preset=PRESETS["paper-code"], factor=2.0)
    assert same.settings == learner.settings
    with pytest.raises(DataError, match="no option temprature"):
        mq.OnlineLaplace(network(), num_data=5, temprature=1.0)


def test_other_spellings_mean_the_same():
    spelled = {"structure": "kron", "noise_precision": "learned", "rule": "noisy_adam", "forgetting": "learning_rate"}
    other = OnlineSettings.of(None, spelled)
    same = OnlineSettings(
        structure="kronecker", noise_precision="learnt", rule="noisy-adam", forgetting="learning-rate"
    )
    assert other == same


def test_temperature_is_the_deprecated_name_of_two_things():
    with pytest.warns(DeprecationWarning, match="posterior_temperature="):
        learner = mq.OnlineLaplace(network(), num_data=5, temperature=0.3)
    assert learner.settings.posterior_temperature == 0.3
    with pytest.warns(DeprecationWarning, match="effective_temperature"):
        assert learner.temperature == learner.effective_temperature
    with pytest.warns(DeprecationWarning, match="posterior_temperature="):
        lae = LaplacianAutoencoder(nn.Linear(3, 2), nn.Linear(2, 3), num_data=5, temperature=0.3)
    assert lae.online.settings.posterior_temperature == 0.3  # type: ignore[union-attr]
    with pytest.warns(DeprecationWarning, match="effective_temperature"):
        assert lae.temperature == lae.effective_temperature
    lae.loss(lae.encoder.weight.detach().new_ones(4, 3), None)  # type: ignore[operator]
    for old in (lae.posterior, lambda **o: linearised(lae, **o).posterior):
        with pytest.warns(DeprecationWarning, match="posterior_temperature="):
            precision = old(temperature=2.0).precision.diagonal()
        assert precision.equal(lae.posterior(posterior_temperature=2.0).precision.diagonal())


def test_what_earlier_versions_wrote_is_read(recwarn):
    held = {"kind": "lae", "shape": [3], "latent": 2, "options": {"temperature": 0.5, "preset": "paper"}}
    spec = ModelSpec.from_json(held)
    assert spec.options == {"posterior_temperature": 0.5, "preset": "paper"}
    assert ModelSpec.from_json(json.loads(json.dumps(spec.as_json()))) == spec
    posthoc = ModelSpec.from_json({**held, "kind": "lae-posthoc", "options": {"temperature": 0.5}})
    assert posthoc.options == {"temperature": 0.5}  # of the likelihood, which it always was there
    old = {**TrainingSettings("lae", "x").as_json(), "preset": None, "structure": "kronecker", "temperature": 0.1}
    del old["options"], old["header"]
    settings = TrainingSettings.from_json(old)
    assert settings.options == {"structure": "kronecker", "posterior_temperature": 0.1}
    assert TrainingSettings.from_json(settings.as_json()) == settings
    assert not [warning for warning in recwarn if warning.category is DeprecationWarning]


def test_deprecated_names_of_the_settings():
    for package, new in ((run, TrainingSettings), (online, OnlineSettings)):
        with pytest.warns(DeprecationWarning, match=new.__name__):
            assert package.Settings is new
