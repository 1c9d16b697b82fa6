"""Hold results of learning with few labels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class FewLabelsResult:
    """Hold the accuracy for each number of labels per class; `print` it for a table.

    Attributes:
        per_class: Numbers of labels per class.
        accuracy: `[len(per_class), repetitions]`, on the data without a label.
        neighbours: The k that cross-validation chose, of the same shape.
        copies: Number of codes of each labelled sample (1 for a model without uncertainty).
    """

    per_class: tuple[int, ...]
    accuracy: Tensor
    neighbours: Tensor
    copies: int

    def __str__(self) -> str:
        lines = [f"{self.copies} code(s) per label, {self.accuracy.shape[1]} repetition(s)"]
        lines.append("labels per class   accuracy          k")
        for n, accuracy, ks in zip(self.per_class, self.accuracy, self.neighbours.tolist(), strict=True):
            spread = f" ± {float(accuracy.std()):.4f}" if len(accuracy) > 1 else ""
            lines.append(f"{n:16d}   {float(accuracy.mean()):.4f}{spread:9}   {', '.join(map(str, ks))}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class MultiLabelResult:
    """Hold the accuracy for each of A yes-or-no attributes; `print` it for a table.

    Attributes:
        names: Names of the attributes.
        accuracy: `[repetitions, A]`, on the data without labels.
        balanced: Mean of the accuracies among those that have the attribute and those that do not, of the same shape;
            0.5 for constant predictions. NaN where all evaluated data are alike.
        majority: Accuracy of always predicting the more frequent value of the evaluated data, `[repetitions, A]`. A
            baseline: always "not bald" has an accuracy of 98 %.
        neighbours: The k that cross-validation chose, per repetition.
        labelled: Number of rows with labels.
        copies: Number of codes of each of them.
    """

    names: tuple[str, ...]
    accuracy: Tensor
    balanced: Tensor
    majority: Tensor
    neighbours: tuple[int, ...]
    labelled: int
    copies: int

    @property
    def overall(self) -> float:
        """Return the mean over attributes and repetitions."""
        return float(self.accuracy.mean())

    def __str__(self) -> str:
        width = max(len("attribute"), *map(len, self.names))
        head = f"{self.labelled} labelled, {self.copies} code(s) each, {len(self.accuracy)} repetition(s)"
        lines = [head, f"{'attribute':<{width}}  accuracy  majority"]
        for name, accuracy, majority in zip(self.names, self.accuracy.mean(0), self.majority.mean(0), strict=True):
            lines.append(f"{name:<{width}}  {float(accuracy):8.4f}  {float(majority):8.4f}")
        return "\n".join([*lines, f"{'overall':<{width}}  {self.overall:8.4f}  {float(self.majority.mean()):8.4f}"])
