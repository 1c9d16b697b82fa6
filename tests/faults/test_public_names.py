"""No public callable is left out of the fuzzer unless a list says why."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from public_names import public_callables
from test_fuzz import GROUPS, doors_of

OURS, HERE = f"{Path(sys.modules['marquis'].__file__ or '').parent}/", f"{Path(__file__).parent}/"
WRAPPERS = tuple(f"{OURS}{name}.py" for name in ("arguments", "options", "lazy"))

RESULTS = [
    "curvature.Plan",
    "evidence.Trained",
    "evidence.Tuned",
    "laplace.CheckReport",
    "laplace.Finding",
    "laplace.Fitted",
    "laplace.MeanShift",
    "likelihoods.Predictive",
    "online.OnlineState",
    "autoencoders.Estimate",
    "autoencoders.Reconstruction",
    "autoencoders.Trained",
    "report.Comparison",
    "run.Rows",
    "run.Run",
    "run.Scaling",
    "scores.NullSpacePosterior",
    "scores.SketchedLanczos",
    "tasks.calibration.Reliability",
    "tasks.calibration.ErrorCurve",
    "tasks.geometry.Geodesic",
    "tasks.imputation.Imputation",
    "tasks.imputation.ImputationErrors",
    "tasks.imputation.WeightedImputation",
    "tasks.ood.OodResult",
    "tasks.ranking.RocCurve",
    "tasks.semi_supervised.FewLabelsResult",
    "tasks.semi_supervised.MultiLabelResult",
    "tomography.ExactPrior",
    "tomography.IterativePrior",
    "tomography.TrainedImage",
    "tomography.TunedPrior",
    "tomography.UncertainImage",
    "priors.BoundPrior",
    "priors.StructuredPrior",
    "structures.Block",
    "structures.Diagonal",
    "structures.Full",
    "structures.Kronecker",
    "structures.LowRank",
    "explorer.Session",
]

ENGINE = (
    r"(.*\.)?(apply_sqrt|fisher_column|root_shape|target_shape|entry_log_prob|at_unit_noise|count_moments|validate|"
    r"resolve|observed|gradient|hessian|hessian_diagonal|predictive_at)"
)

LEFT_OUT: dict[str, str] = {
    r"testing\..*": "conformance kits for authors of likelihoods and structures: they are tests, and fail by assertion",
    "|".join(map(re.escape, RESULTS)): "a result that the package makes and nobody else; its methods are fuzzed",
    r"Likelihood|structures\.Structure|tomography\.Measurement|autoencoders\.(Base|Uncertain)Autoencoder|"
    r"likelihoods\.(Pointwise|Custom)Likelihood(\..*)?|(Likelihood|structures\.Structure|tomography\.Measurement|"
    r"autoencoders\.(Base|Uncertain)Autoencoder)\..*": "an interface: what implements it is fuzzed",
    rf"(Bernoulli|Categorical|Gaussian|Heteroscedastic|likelihoods\.\w+)\.({ENGINE}|from_state_dict)": "the "
    "engine calls it "
    "with outputs of a network that it ran itself; the four promised methods of a likelihood are fuzzed",
    r"structures\.Layout(\..*)?|structures\.\w+\.(with_tensors|trusted|report|truncate)": "arithmetic inside a pass, "
    "with "
    "tensors that the engine made; a check would cost time in every step",
    r"priors\.BoundPrior\.(select|vector)": "the same",
    r"online\.OnlineState\..*|online\.NoisyAdam": "made and stepped by OnlineLaplace",
    r".*\.(on_\w+|(training|validation|test)_step|configure_optimizers|setup|forward|parameter_groups)": "torch and "
    "Lightning call it with what they hold",
    r"autoencoders\.\w+\.(sampled_models|model_at|inputs|loss|mean_code|mean_output|objective|optimiser_and_schedule|output|"
    r"sampled_networks|training_loss|validation_loss|begin|code|log_terms|kept|kl)": "steps of a training or of "
    "the three "
    "promised methods (encode, decode, reconstruct), which are fuzzed",
    r"explorer\.(Server(\..*)?|Session\.(compare|contributions)|Workspace\.(set_second|sheet|about\w*))": "answers "
    "to the page; requests are fuzzed against the interface's schema in tests/explorer/test_server.py",
    r"report\.Page\.(figure|picture|html)": "take a figure of matplotlib that the report drew",
    r"autoencoders\.TrainingResult|evidence\.EvidenceTraining": "a result that the package makes",
    r"structures\.Spread(\..*)?|structures\.\w+\.over_processes": "made by a pass over several processes",
    r"curvature\.linop\.linear_operator\.(Solver.*|LinearOperator|LinearOperator\.probe_vectors)": "an interface",
    r"plots\.new_figure": "makes the empty figure of a report",
    r"report\.Page\.image": "takes a figure of matplotlib that the report drew",
    r"variational\.MAP\.elbo": "refuses every call: a point has no ELBO",
    r"integrations\.hub\.push_to_hub": "talks to a network",
    r"integrations\.pyod\.LaplacianDetector\.get_params": "PyOD's own interface",
    r"run\.Run\.(resumed|check_config|held|save_config)": "the command line's; 300 random command lines are fuzzed",
    r"tomography\.IterativePrior\.(approximation_for|operator)": "steps of tune and posterior, which are fuzzed",
    r"variational\.(MeanFieldVI|VariationalLaplace|MAP)\.draw": "a step of predict, which is fuzzed",
    r"autoencoders\.fit": "takes a trainer's objects; `marquis train` and tests/autoencoders fuzz it by command lines",
}


def takes_arguments(function: Any) -> bool:
    """Return whether there is anything to spoil."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return bool(names)


def called_from_here(frame: FrameType | None) -> bool:
    """Return whether a call comes from a door, perhaps through wrappers or another package, not from our package."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(HERE):
            return True
        passes_on = file.startswith(WRAPPERS) or frame.f_code.co_name in ("wrapper", "wrapped", "together", "shared")
        if file.startswith(OURS) and not passes_on:
            return False
        frame = frame.f_back
    return False


def code_of(target: Any) -> Any:
    function = inspect.unwrap(target.__init__ if inspect.isclass(target) else target)
    return getattr(function, "__code__", None)


@pytest.mark.slow
def test_every_public_callable_is_fuzzed_or_left_out_for_a_reason(tmp_path, monkeypatch):
    """Calls every door as it should be called and watches which public callables it enters."""
    monkeypatch.chdir(tmp_path)
    entered: set[Any] = set()
    public = {name: target for name, target in public_callables().items()}
    codes = {code_of(target) for target in public.values()}

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in codes and called_from_here(frame.f_back):
            entered.add(frame.f_code)

    for group in GROUPS:
        for door in doors_of(group):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sys.setprofile(watch)
                try:
                    door.call(**door.arguments())
                finally:
                    sys.setprofile(None)
    reasons = re.compile("|".join(f"(?:{pattern})" for pattern in LEFT_OUT))
    missing = [
        name
        for name, target in public.items()
        if code_of(target) not in entered and takes_arguments(target) and not reasons.fullmatch(name)
    ]
    assert not missing, f"neither fuzzed nor on the list: {missing}"
    unused = [pattern for pattern in LEFT_OUT if not any(re.fullmatch(pattern, name) for name in public)]
    assert not unused
