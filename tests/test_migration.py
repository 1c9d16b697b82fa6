"""The migration page names every public class and call of laplace-torch 0.3."""

from __future__ import annotations

from pathlib import Path

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "migration.md").read_text(encoding="utf-8")

# Its public names: classes, methods, properties, functions, arguments, and the values of its enumerations.
NAMES = """
Laplace FullLaplace KronLaplace DiagLaplace LowRankLaplace LLLaplace FullLLLaplace KronLLLaplace DiagLLLaplace
FunctionalLaplace FunctionalLLLaplace SubnetLaplace FullSubnetLaplace DiagSubnetLaplace ELLA VaLLA marglik_training
fit log_marginal_likelihood log_likelihood optimize_prior_precision sample functional_samples predictive_samples
functional_variance functional_covariance functional_variance_fast scatter log_det_ratio log_det_prior_precision
log_det_posterior_precision square_norm log_prob prior_precision prior_precision_diag prior_mean sigma_noise
posterior_precision posterior_scale posterior_covariance posterior_variance state_dict load_state_dict mean_subnet
assemble_full_samples gp_kernel_prior_variance jacobians last_layer_jacobians Kron KronDecomposed FeatureExtractor
LargestVarianceDiagLaplaceSubnetMask LargestVarianceSWAGSubnetMask LargestMagnitudeSubnetMask RandomSubnetMask
ParamNameSubnetMask ModuleNameSubnetMask LastLayerSubnetMask fit_diagonal_swag_var get_nll validate RunningNLLMetric
CurvlinopsGGN CurvlinopsEF CurvlinopsHessian BackPackGGN AsdlGGN AsdlHessian AsdfghjklGGN
subset_of_weights hessian_structure likelihood backend temperature enable_backprop dict_key_x dict_key_y damping
last_layer subnetwork kron diag full lowrank gp regression classification reward_modeling glm nn mc probit bridge
bridge_norm marglik gridsearch scalar layerwise pred_type link_approx n_samples joint diagonal_output override
progress_bar n_steps lr init_prior_prec prior_structure val_loader loss log_prior_prec_min log_prior_prec_max grid_size
n_epochs lr_hyp n_epochs_burnin n_hypersteps marglik_frequency prior_prec_init sigma_noise_init fix_sigma_noise
optimizer_cls optimizer_kwargs scheduler_cls scheduler_kwargs
"""


def test_the_page_names_every_public_name():
    assert [name for name in NAMES.split() if name not in PAGE] == []
