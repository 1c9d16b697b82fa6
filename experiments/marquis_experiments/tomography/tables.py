"""Tables of the page, and the targets that were set before the run, judged with standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from statistics import mean
from typing import Any

from marquis_experiments.common.metrics import standard_error
from marquis_experiments.common.page import signed, table, verdict, with_error, yes
from marquis_experiments.tomography.angles import CHOICES
from marquis_experiments.tomography.characters import STOPS
from marquis_experiments.tomography.slices import SLICE

METHODS = {
    "predcp": "**evidence per block, TV-PredCP on the variance**",
    "block": "evidence per block (default)",
    "gp": "evidence per block, Gaussian process over taps",
    "paper": "TV-PredCP on lengthscales (published)",
    "scalar_predcp": "one variance, TV-PredCP",
    "scalar": "one variance",
    "tangent": "one variance, tangent evidence",
    "dropout": "MC dropout",
    "ensemble": "ensemble of 5",
    "constant_1": "constant noise, σ² = 1",
    "constant_tuned": "constant noise, σ² tuned",
    "defaults": "`reconstruct(noise=..., range=...)` with its own defaults",
    "defaults_predcp": "the same with `predcp=True`",
}
EXPECTED = {(20, 0.05): 2.83, (5, 0.1): 1.41}
"""Log densities per pixel of the prototype, which the default has to reach within 0.05."""

SHORT_NAMES = {"predcp": "TV-PredCP", "block": "evidence per block", "dropout": "dropout", "ensemble": "ensemble"}

Rows = list[dict[str, Any]]


def values(results: dict[str, Any]) -> dict[str, Any]:
    """Return what the page's placeholders stand for."""
    settings = sorted({(row["angles"], row["noise"]) for row in results["linearised"]}, key=lambda s: -s[0])
    main = (20, 0.05) if (20, 0.05) in settings else settings[0]
    claims = targets(results, [main, *(setting for setting in settings if setting != main)])
    rows = of_setting(results["linearised"], main)
    slices = results["ct"]
    finished = next((row for row in long_trainings(slices) if "0.8" in row["reached"]), None)
    planned = max(count for angles, noise, count in results["settings"]["characters"] if (angles, noise) == main)
    return {
        "images": len(rows),
        "planned": planned,
        "unfinished": len(rows) < planned,
        "angles": main[0],
        "noise": f"{100 * main[1]:g} %",
        "main": density_table(results, main),
        "others": "\n\n".join(
            f"{angles} angles, {100 * noise:g} % noise:\n\n{density_table(results, (angles, noise))}"
            for angles, noise in settings
            if (angles, noise) != main
        ),
        "has_others": len(settings) > 1,
        "quality": quality_table(results["linearised"], settings),
        "targets": table(["target", "measured", "met"], [[*row[:2], "yes" if row[2] else "no"] for row in claims]),
        "met": sum(row[2] for row in claims),
        "count": len(claims),
        "psnr": {name: mean(row["psnr"][name] for row in rows) for name in ("fbp", "tv", "dip")},
        "marginal": ", ".join(
            f"{SHORT_NAMES[method]} {mean(density):.2f}"
            for method in SHORT_NAMES
            if (density := column(all_rows(results, main), method, "marginal_log_density"))
        ),
        "default": {key: mean(column(rows, "predcp", key)) for key in ("log_density", "coverage", "correlation")},
        "without_floor": mean(column(rows, "predcp", "raw_marginal_log_density")),
        "stop": stop_table(results["stop"]),
        "has_stop": bool(results["stop"]),
        "lengthscales": lengthscale_line(rows),
        "has_lengthscales": any("lengthscale" in row for row in rows),
        "ct": slice_table(slices),
        "ct_posterior": slice_posterior_table(slices),
        "has_ct": bool(slices),
        "tv_ahead": tv_ahead(slices),
        "long": finished and finished | {"stopped": finished["reached"]["0.8"]},
        "slice_psnr": slices[0]["psnr"] if slices else None,
        "ahead": {name: ahead_of_tv(slices, name) for name in ("base", "long")},
        "slices": ", ".join(str(row.get("slice", SLICE)) for row in long_trainings(slices)),
        "has_ct_posterior": any("rows" in row for row in slices),
        "problems": problem_table(results["problem"]),
        "problem_images": len({row["image"] for row in results["problem"]}),
        "has_problems": bool(results["problem"]),
        "narrow": {
            name: {method: mean(column(mine, method, "coverage")) for method in ("predcp", "block")}
            for name in ("blur", "downsampling")
            if (mine := [row for row in results["problem"] if row["problem"] == name])
        },
        "narrow_slices": narrow_slices(slices),
        "design": design_table(results["design"]),
        "designs": len(results["design"]),
        "design_not_shown": not any(shown_better(results["design"], *pair) for pair in product(CHOICES, ("dip", "tv"))),
        "has_design": bool(results["design"]),
        "holds": {
            "dip": yes(claims[0][2]),
            "coverage": yes(claims[2][2]),
            "order": yes(all(row[2] for row in claims if "marginal density" in row[0])),
        },
        "verdict": verdict(len(rows) >= planned, *(row[2] for row in claims), not tv_ahead(slices)),
    }


def long_trainings(slices: Rows) -> Rows:
    """Return the long trainings at 128 pixels, one per slice."""
    return [row for row in slices if row["training"] == "long" and row["size"] == 128]


def ahead_of_tv(slices: Rows, training: str) -> str:
    """Return by how many decibels the network's images are better than total variation's, over slices."""
    mine = [row["psnr"] for row in slices if row["training"] == training and row["size"] == 128]
    return signed([row["dip"] - row["tv"] for row in mine]) if mine else ""


def narrow_slices(slices: Rows) -> str:
    """Return what intervals of CT slices cover with TV-PredCP, and without it."""
    finished = [(row["steps"], row["rows"]) for row in slices if "scalar_predcp" in row.get("rows", {})]
    pairs = [(steps, rows["scalar_predcp"]["coverage"], rows["scalar"]["coverage"]) for steps, rows in finished]
    return ", ".join(f"{narrow:.2f} instead of {wide:.2f} after {steps} steps" for steps, narrow, wide in pairs)


def tv_ahead(slices: Rows) -> bool:
    """Return whether total variation has the better image of the CT slice than the usual number of training steps."""
    return bool(slices) and slices[0]["psnr"]["tv"] > slices[0]["psnr"]["dip"]


def of_setting(rows: Rows, setting: tuple[int, float]) -> Rows:
    """Return the rows with this number of angles and noise."""
    return [row for row in rows if (row["angles"], row["noise"]) == setting]


def column(rows: Rows, method: str, key: str) -> list[float]:
    """Return one score of one method over images, where it was computed."""
    return [row["rows"][method][key] for row in rows if method in row["rows"] and key in row["rows"][method]]


def all_rows(results: dict[str, Any], setting: tuple[int, float]) -> Rows:
    """Return one entry per image with the rows of all cells together."""
    merged: dict[int, dict[str, Any]] = {}
    for kind in ("linearised", "ensemble", "defaults"):
        for row in of_setting(results[kind], setting):
            merged.setdefault(row["image"], {"rows": {}, "image": row["image"]})["rows"] |= row["rows"]
    return list(merged.values())


def density_table(results: dict[str, Any], setting: tuple[int, float]) -> str:
    """Return log densities, coverage and correlation of all methods at one setting."""
    rows = all_rows(results, setting)
    lines = []
    for method, title in METHODS.items():
        count = len(column(rows, method, "coverage"))
        if not count:
            continue
        line = [title if count == len(rows) else f"{title} (n = {count})"]
        for key in ("psnr", "log_density", "marginal_log_density", "coverage", "correlation"):
            entries = column(rows, method, key)
            digits = 1 if key == "psnr" else 3 if key == "coverage" else 2
            line.append(with_error(entries, digits) if entries else "")
        lines.append(line)
    return table(["method", "PSNR", "log density", "marginal", "95 % covers", "corr(error, std)"], lines)


def quality_table(rows: Rows, settings: Sequence[tuple[int, float]]) -> str:
    """Return PSNR of images by setting."""
    lines = []
    for setting in settings:
        mine = of_setting(rows, setting)
        cells = [with_error([row["psnr"][name] for row in mine], 1) for name in ("fbp", "tv", "tv_same_weight", "dip")]
        gain = [row["psnr"]["dip"] - row["psnr"]["tv"] for row in mine]
        lines.append([f"{setting[0]} angles, {100 * setting[1]:g} %", *cells, with_error(gain, 2)])
    head = ["measured", "FBP", "TV, best of three weights", "TV, the network's weight", "deep image prior"]
    return table([*head, "DIP better by"], lines)


def targets(results: dict[str, Any], settings: Sequence[tuple[int, float]]) -> list[tuple[str, str, bool]]:
    """Judge what was set before the run, at every setting; a difference counts by its mean, with its standard error."""
    claims = []
    for angles, noise in settings:
        place = f"{angles} angles, {100 * noise:g} %: "
        claims += [(place + text, shown, met) for text, shown, met in targets_at(results, (angles, noise))]
    return claims


def targets_at(results: dict[str, Any], setting: tuple[int, float]) -> list[tuple[str, str, bool]]:
    """Judge the targets at one number of angles and level of noise."""
    rows = of_setting(results["linearised"], setting)
    merged = all_rows(results, setting)
    tv_ahead = [row["psnr"]["tv"] - row["psnr"]["fbp"] for row in rows]
    dip_ahead = [row["psnr"]["dip"] - row["psnr"]["tv"] for row in rows]
    density = column(rows, "predcp", "log_density")
    coverage, correlation = column(rows, "predcp", "coverage"), column(rows, "predcp", "correlation")
    noise = [row["rows"]["predcp"]["noise_variance"] / row["true_noise"] for row in rows]
    claims = [
        ("deep image prior better than TV by 1.5 dB", f"{with_error(dip_ahead, 2)} dB", mean(dip_ahead) >= 1.5),
        ("TV better than FBP by 6 dB", f"{with_error(tv_ahead, 2)} dB", mean(tv_ahead) >= 6),
        ("95 % intervals cover 0.95 to 0.995", with_error(coverage), 0.95 <= mean(coverage) <= 0.995),
        ("correlation of error and std at least 0.65", with_error(correlation, 2), mean(correlation) >= 0.65),
        ("noise variance within 0.9 to 1.15 of the truth", with_error(noise, 2), 0.9 <= mean(noise) <= 1.15),
    ]
    if setting in EXPECTED:
        least = EXPECTED[setting] - 0.05
        claims.append((f"log density at least {least:.2f}", with_error(density, 2), mean(density) >= least))
    for better, worse in (("predcp", "block"), ("block", "dropout"), ("dropout", "ensemble")):
        pairs = [row["rows"] for row in merged if better in row["rows"] and worse in row["rows"]]
        if pairs:
            gain = [row[better]["marginal_log_density"] - row[worse]["marginal_log_density"] for row in pairs]
            text = f"marginal density: {SHORT_NAMES[better]} at least {SHORT_NAMES[worse]}"
            claims.append((text, with_error(gain, 2), mean(gain) >= 0))
    return claims


def stop_table(rows: Rows) -> str:
    """Return PSNR by the residual at which training stops."""
    lines = []
    for setting in sorted({(row["angles"], row["noise"]) for row in rows}, key=lambda s: -s[0]):
        mine = of_setting(rows, setting)
        cells = []
        for share in STOPS:
            reached = [row["reached"].get(str(share), row["end"]) for row in mine]
            missed = sum(str(share) not in row["reached"] for row in mine)
            cells.append(f"{mean(reached):.1f}" + (f" ({missed} not reached)" if missed else ""))
        ends = [f"{mean(row[key] for row in mine):.1f}" for key in ("end", "best")]
        lines.append([f"{setting[0]} angles, {100 * setting[1]:g} %, {len(mine)} images", *cells, *ends])
    return table(["stop at residual / σ²", *map(str, STOPS), "2500 steps", "best of all steps"], lines)


def lengthscale_line(rows: Rows) -> str:
    """Return the median lengthscale of 3 x 3 blocks, by evidence alone and with the published prior."""
    parts = []
    for name, title in (("gp", "by the evidence alone"), ("paper", "with the published prior")):
        values = [value for row in rows if "lengthscale" in row for value in row["lengthscale"][name]]
        entries = sorted(value for value in values if abs(value - 0.1) > 1e-9)  # blocks of 1 x 1 filters stay at 0.1
        if entries:
            parts.append(f"{entries[len(entries) // 2]:.3f} {title}")
    return ", ".join(parts)


def slice_table(rows: Rows) -> str:
    """Return PSNR on the CT slice by way of training."""
    titles = {
        "base": "2500 steps from FBP",
        "long": "7500 steps from FBP",
        "tv-start": "2500 steps from the TV image",
        "more-tv": "2500 steps, ten times the TV weight",
        "short": "1500 steps from FBP",
    }
    lines = [
        [
            row.get("slice", SLICE),
            f"{row['size']} pixels, {row['angles']} angles: {titles[row['training']]}",
            *(f"{row['psnr'][name]:.1f}" for name in ("fbp", "tv", "dip", "dip_best_step")),
            f"{row['residual']:.2f}",
            f"{row['training_seconds']:.0f} s{clock(row)}",
        ]
        for row in rows
    ]
    head = ["slice", "training", "FBP", "TV (best weight)", "DIP", "DIP, best step", "residual / σ²", "time"]
    return table(head, lines)


def clock(row: dict[str, Any]) -> str:
    """Return which clock a row's times are of: the first ones were taken by the wall on a machine with load 10."""
    return "" if row.get("clock") == "cpu" else " (wall)"


def slice_posterior_table(rows: Rows) -> str:
    """Return scores and cost of the iterative posterior on CT slices."""
    titles = {"scalar": "one variance", "scalar_predcp": "one variance, TV-PredCP"}
    lines = []
    for row in rows:
        for name, scores in row.get("rows", {}).items():
            lines.append(
                [
                    f"{row['size']} pixels, {row['steps']} steps, {titles[name]}",
                    f"{scores['weight_variance']:.3g}",
                    f"{scores['mean_std']:.3f}",
                    f"{scores['coverage']:.3f}",
                    f"{scores['marginal_log_density']:.2f}",
                    f"{scores['correlation']:.2f}",
                    f"{scores['noise_ratio']:.2f}",
                    f"{row['seconds'][f'tune_{name}']:.0f} s{clock(row)}",
                    f"{row['seconds'][f'sample_{name}']:.1f} s{clock(row)}",
                    f"{row['peak_gib']:.1f} GiB",
                ]
            )
    head = ["posterior", "v", "mean std", "95 % covers", "marginal", "corr", "σ² / true"]
    head += ["tuning", "a sample", "memory"]
    return table(head, lines)


def problem_table(rows: Rows) -> str:
    """Return image quality, coverage and density of the other linear problems, with and without TV-PredCP."""
    lines = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        mine = [row for row in rows if row["problem"] == name]
        cells = [with_error(column(mine, "predcp", "psnr"), 1), with_error([row["residual"] for row in mine], 1)]
        for key, digits in (("coverage", 2), ("marginal_log_density", 1)):
            cells += [with_error(column(mine, method, key), digits) for method in ("predcp", "block")]
        cells += [f"{mean(column(mine, 'predcp', key)):.2f}" for key in ("saturated", "others")]
        lines.append([name, mine[0]["readings"], *cells])
    head = ["problem", "readings", "PSNR", "residual / σ²", "95 % covers, TV-PredCP", "evidence alone"]
    head += ["marginal density, TV-PredCP", "evidence alone", "covers, saturated pixels", "covers, others"]
    return table(head, lines)


def against_equidistant(rows: Rows, choice: str, method: str) -> list[float]:
    """Return the PSNR by chosen angles minus that by equidistant ones, image by image."""
    return [row[method][choice] - row[method]["equidistant"] for row in rows]


def shown_better(rows: Rows, choice: str, method: str) -> bool:
    """Return whether chosen angles are better than equidistant ones by more than two standard errors."""
    differences = against_equidistant(rows, choice, method)
    return len(differences) > 1 and mean(differences) > 2 * standard_error(differences) > 0


def design_table(rows: Rows) -> str:
    """Return PSNR from ten angles by how the last five were chosen, and paired differences from equidistant ones."""
    if not rows:
        return ""
    lines = []
    for choice in CHOICES:
        line = [choice]
        for method in ("dip", "tv"):
            line.append(with_error([row[method][choice] for row in rows], 2))
            line.append("" if choice == "equidistant" else signed(against_equidistant(rows, choice, method)))
        lines.append(line)
    better = "better than equidistant"
    return table(["five more angles", "deep image prior", better, "total variation", better], lines)
