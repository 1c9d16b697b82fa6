// Names and one-line explanations of the scores, backgrounds and panels.

export const SCORES = {
  combined: ["combined outlier score", "how rare the row's likelihood and variances are among the training rows"],
  error: ["squared error", "squared difference to the reconstructions, averaged over the sampled networks and summed over entries"],
  nll: ["negative log-likelihood", "how unlikely the row is under the reconstructions of the sampled networks"],
  output_variance: ["output variance", "how much the sampled networks disagree about the reconstruction: variances summed over entries"],
  output_std: ["output standard deviation", "how much the sampled networks disagree about the reconstruction: standard deviations summed over entries"],
  total_variance: ["output variance with noise", "disagreement of the sampled networks plus the noise that the decoder predicts"],
  latent_variance: ["code variance", "how uncertain the code is: variances summed over latent dimensions"],
  latent_std: ["code standard deviation", "how uncertain the code is: standard deviations summed over latent dimensions"],
};

export const BACKGROUNDS = {
  none: ["none", ""],
  std: ["decoder standard deviation", "how much the sampled decoders disagree about what is decoded there: large where the model does not know"],
  total_std: ["standard deviation with noise", "disagreement of the sampled decoders plus the noise that they predict"],
  density: ["density of codes", "how many rows have their code there"],
  volume: ["volume of the metric", "how fast the decoded output changes there (volume of the expected pull-back metric)"],
};

export const nameOfScore = (score) => SCORES[score]?.[0] ?? score;

/** Return whether a score differs between rows: the variances of a single network do not. */
export const varies = (values) => values.some((value) => value !== values[0]);
