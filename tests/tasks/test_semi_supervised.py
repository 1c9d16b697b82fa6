"""Few labels: neighbours against scikit-learn, copies that stay together, codes at the mean."""

from __future__ import annotations

import pytest
import torch
from sklearn.model_selection import PredefinedSplit, StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from toy_models import LinearModel

from marquis.errors import DataError
from marquis.tasks import neighbours, semi_supervised


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def codes_and_labels(n: int = 60, width: int = 3, classes: int = 4, seed: int = 0):
    generator = seeded(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    codes = torch.randn(n, width, generator=generator, dtype=torch.float64) + labels.unsqueeze(1)
    return codes, labels


def identity(width: int = 3, scale: float = 0.0) -> LinearModel:
    eye = torch.eye(width, dtype=torch.float64)
    return LinearModel(eye, eye, scale)


def test_neighbours_agree_with_scikit_learn():
    codes, labels = codes_and_labels()
    queries, _ = codes_and_labels(seed=1)
    ks = [3, 1, 10, 7, 60]
    result = neighbours.predict(codes, labels, queries, ks)
    for k, answer in zip(ks, result, strict=True):
        theirs = KNeighborsClassifier(k).fit(codes, labels).predict(queries)
        assert answer.tolist() == theirs.tolist()


def test_neighbours_with_many_labels_agree_with_scikit_learn():
    codes, labels = codes_and_labels()
    many = torch.stack([labels % 2, labels // 2, torch.zeros_like(labels)], 1)
    queries, _ = codes_and_labels(seed=1)
    for k, answer in zip((1, 2, 5), neighbours.predict(codes, many, queries, [1, 2, 5]), strict=True):
        theirs = KNeighborsClassifier(k).fit(codes, many).predict(queries)
        assert answer.tolist() == theirs.tolist()


def test_copies_without_variance_change_nothing_for_one_neighbour():
    codes, labels = codes_and_labels()
    queries, _ = codes_and_labels(n=200, seed=1)
    copied = neighbours.labelled_copies(codes.repeat(100, 1, 1), labels)
    assert len(copied[0]) == 6000
    once = neighbours.predict(codes, labels, queries, [1])
    assert torch.equal(neighbours.predict(*copied, queries, [1]), once)
    spread = codes.repeat(100, 1, 1) + torch.randn(100, 60, 3, generator=seeded(), dtype=torch.float64)
    assert not torch.equal(
        neighbours.predict(*neighbours.labelled_copies(spread, labels), queries, [1]), once
    )  # variance does


def test_flat_keeps_each_copy_with_its_label():
    codes, labels = codes_and_labels(n=4)
    copied, repeated = neighbours.labelled_copies(torch.stack([codes, codes + 1]), labels)
    assert torch.equal(copied, torch.cat([codes, codes + 1]))
    assert torch.equal(repeated, torch.cat([labels, labels]))
    many = torch.stack([labels, labels], 1)
    assert torch.equal(neighbours.labelled_copies(codes[None].repeat(3, 1, 1), many)[1], many.repeat(3, 1))


@pytest.mark.parametrize("folds", [2, 5])
def test_folds_spread_the_classes(folds):
    labels = torch.arange(40) % 4
    fold = neighbours.grouped_folds(labels, folds, seeded())
    for part in range(folds):
        assert torch.bincount(labels[fold == part], minlength=4).tolist() == [10 // folds] * 4
    assert not torch.equal(fold, neighbours.grouped_folds(labels, folds, seeded(1)))
    uneven = neighbours.grouped_folds(torch.tensor([0, 0, 0, 1, 1, 2]), 2, seeded())
    assert torch.bincount(uneven).tolist() == [3, 3]
    with pytest.raises(DataError, match="2 folds of 1 data"):
        neighbours.grouped_folds(labels[:1], 2)


def noisy_copies(seed: int = 0, copies: int = 20, n: int = 30):
    """Labels that have nothing to do with the codes, copies close to each other."""
    generator = seeded(seed)
    codes = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    labels = (torch.rand(n, generator=generator) < 0.35).long()
    return codes + 1e-3 * torch.randn(copies, n, 2, generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize("seed", range(4))
def test_choice_of_k_agrees_with_scikit_learn_on_grouped_folds(seed):
    codes, labels = codes_and_labels(n=40, seed=seed)
    copies = codes + 0.5 * torch.randn(6, 40, 3, generator=seeded(seed), dtype=torch.float64)
    x, y = neighbours.labelled_copies(copies, labels)
    fold = neighbours.grouped_folds(labels, 2, seeded(seed)).repeat(6)
    accuracy = {}
    for k in range(1, 11):
        split = PredefinedSplit(fold.numpy())  # both folds have as many codes, so their mean is the overall share
        accuracy[k] = cross_val_score(KNeighborsClassifier(k), x, y, cv=split).mean()
    best = max(accuracy.values())
    smallest = min(k for k, value in accuracy.items() if value > best - 1e-12)
    assert neighbours.choose_k(copies, labels, generator=seeded(seed)) == smallest


def test_copies_of_one_datum_never_face_each_other(monkeypatch):
    copies, labels = noisy_copies()
    seen = []
    real = neighbours.predict

    def watch(codes, known, queries, ks):
        seen.append((codes, queries))
        return real(codes, known, queries, ks)

    monkeypatch.setattr(neighbours, "predict", watch)
    chosen = neighbours.choose_k(copies, labels, generator=seeded())
    assert len(seen) == 2
    for codes, queries in seen:
        assert len(codes) + len(queries) == copies.shape[0] * copies.shape[1]
        assert torch.cdist(queries, codes).min() > 0.01  # ten times the distance of copies
    x, y = neighbours.labelled_copies(copies, labels)
    leaky = cross_val_score(KNeighborsClassifier(1), x, y, cv=StratifiedKFold(2, shuffle=True, random_state=0))
    assert leaky.mean() == 1.0  # what happens otherwise: labels without meaning, predicted perfectly
    assert (
        float((real(*neighbours.labelled_copies(copies[:, :15], labels[:15]), x, [chosen])[0] == y).double().mean())
        < 0.9
    )


def test_candidates_are_limited_by_the_fold():
    codes, labels = codes_and_labels(n=4)
    assert neighbours.choose_k(codes[None], labels) <= 2
    with pytest.raises(DataError, match="none of the candidates"):
        neighbours.choose_k(codes[None], labels, candidates=[3, 4])


def test_smallest_of_equally_good_candidates_in_whatever_order():
    labels = torch.arange(20) % 2
    codes = 100.0 * labels.double().unsqueeze(1) + torch.randn(20, 1, generator=seeded(), dtype=torch.float64)
    for candidates in ([1, 2, 5], [5, 1, 2], [2, 5, 1]):  # every k is right about everything
        assert neighbours.choose_k(codes[None], labels, candidates=candidates, generator=seeded()) == 1
    mostly = torch.tensor([0] * 9 + [1] + [0] * 10)  # the one exception leads its neighbours astray if k = 1
    alone = codes[::2].repeat(2, 1)
    assert neighbours.choose_k(alone[None], mostly, candidates=[1, 5], generator=seeded()) == 5


def test_embedding_is_the_mean_or_every_draw():
    model, (x, _) = identity(scale=0.2), codes_and_labels(n=10)
    mean = semi_supervised.embed(model, x, 6, generator=seeded())
    copies = semi_supervised.embed(model, x, 6, copies=True, generator=seeded(), batch_size=4)
    assert copies.shape == (6, 10, 3)
    assert mean == pytest.approx(copies.mean(0), rel=1e-12)
    assert not torch.allclose(copies[-1], mean, rtol=1e-3)


def test_evaluation_is_at_the_mean_code_of_the_data_without_label(monkeypatch):
    model, (x, labels) = identity(scale=0.3), codes_and_labels(n=80)
    requested = []
    real = semi_supervised.predict

    def watch(codes, known, queries, ks):
        requested.append((codes, known, queries, ks, real(codes, known, queries, ks)[0]))
        return requested[-1][-1][None]

    monkeypatch.setattr(semi_supervised, "predict", watch)
    result = semi_supervised.evaluate(model, x, labels, [1, 3], repetitions=2, copies=5, generator=seeded())
    means = semi_supervised.embed(model, x, 5, generator=seeded())
    assert len(requested) == 4
    for number, (codes, known, queries, ks, answers) in enumerate(requested):
        per_class = [1, 1, 3, 3][number]
        assert torch.bincount(known).tolist() == [5 * per_class] * 4
        distance = torch.cdist(queries, means)
        assert float(distance.min(1).values.max()) < 1e-6
        place = distance.argmin(1)
        assert len(place.unique()) == 80 - 4 * per_class
        truth = labels[place]
        row, column = divmod(number, 2)
        assert float(result.accuracy[row, column]) == pytest.approx(float((answers == truth).double().mean()))
        assert ks == [int(result.neighbours[row, column])]
        # the labelled are the others: their copies are those of the remaining rows
        rest = torch.tensor([i for i in range(80) if i not in set(place.tolist())])
        theirs = semi_supervised.embed(model, x[rest], 5, copies=True, generator=seeded()).flatten(0, 1)
        assert codes.sort(0).values == pytest.approx(theirs.sort(0).values, rel=1e-12)
    assert result.neighbours[0].tolist() == [1, 1]


def test_evaluation_result():
    labels = torch.arange(60) % 3
    x = 100.0 * labels.double().unsqueeze(1).repeat(1, 3) + torch.randn(60, 3, generator=seeded(), dtype=torch.float64)
    result = semi_supervised.evaluate(identity(scale=0.01), x, labels, (1, 2, 10), repetitions=3, copies=4)
    assert result.accuracy.shape == result.neighbours.shape == (3, 3)
    assert torch.equal(result.accuracy, torch.ones(3, 3, dtype=torch.float64))
    assert result.copies == 4
    lines = str(result).splitlines()
    assert lines[0] == "4 code(s) per label, 3 repetition(s)"
    assert lines[2].split() == ["1", "1.0000", "±", "0.0000", "1,", "1,", "1"]
    mixed = labels[torch.randperm(60, generator=seeded())]  # labels without meaning
    chance = semi_supervised.evaluate(identity(), x, mixed, [5], repetitions=5, generator=seeded())
    assert float(chance.accuracy.mean()) < 0.6


def test_one_label_per_class_means_one_neighbour(monkeypatch):
    monkeypatch.setattr(semi_supervised, "choose_k", lambda *_, **__: 2)
    x, labels = codes_and_labels(n=80)
    result = semi_supervised.evaluate(identity(), x, labels, [1, 2], repetitions=2, copies=3)
    assert result.neighbours.tolist() == [[1, 1], [2, 2]]  # nothing to cross-validate with one each


def test_same_generator_same_result():
    x, labels = codes_and_labels(n=80)
    model = identity(scale=0.3)
    first, again, other = (
        semi_supervised.evaluate(model, x, labels, [2], repetitions=3, copies=3, generator=seeded(s)) for s in (0, 0, 1)
    )
    assert torch.equal(first.accuracy, again.accuracy)
    assert not torch.equal(first.accuracy, other.accuracy)


def test_codes_that_are_there_already_give_the_same_result():
    x, labels = codes_and_labels(n=80)
    model, options = identity(scale=0.3), {"per_class": [1, 3], "repetitions": 3}
    whole = semi_supervised.evaluate(model, x, labels, copies=5, generator=seeded(), **options)
    source = seeded()
    copies = semi_supervised.embed(model, x, 5, copies=True, generator=source)
    parts = semi_supervised.evaluate_codes(copies, labels, generator=source, **options)
    assert torch.equal(whole.accuracy, parts.accuracy) and torch.equal(whole.neighbours, parts.neighbours)
    elsewhere = semi_supervised.evaluate_codes(copies, labels, means=x.flip(0), generator=seeded(), **options)
    assert not torch.equal(whole.accuracy, elsewhere.accuracy)
    many = torch.stack([labels % 2, labels // 2], 1)
    whole = semi_supervised.evaluate_multilabel(model, x, many, 10, copies=5, generator=seeded())
    source = seeded()
    copies = semi_supervised.embed(model, x, 5, copies=True, generator=source)
    parts = semi_supervised.evaluate_multilabel_codes(copies, many, 10, generator=source)
    assert torch.equal(whole.accuracy, parts.accuracy) and whole.neighbours == parts.neighbours


def test_same_seed_same_labelled_data_and_folds_whatever_the_model(monkeypatch):
    x, labels = codes_and_labels(n=80)
    seen: list[list] = []
    real = semi_supervised.choose_k

    def watch(copies, known, *, candidates, at, generator):
        seen[-1] += [generator.get_state(), at]
        return real(copies, known, candidates=candidates, at=at, generator=generator)

    monkeypatch.setattr(semi_supervised, "choose_k", watch)
    for codes in (x[None], x.repeat(7, 1, 1), x[None] @ torch.ones(3, 3, dtype=torch.float64)):
        seen.append([])
        semi_supervised.evaluate_codes(codes, labels, [2, 4], repetitions=3, means=x, generator=seeded())
    assert len(seen[0]) == 12
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_counting_data_makes_copies_without_variance_change_nothing():
    x, labels = codes_and_labels(n=120)
    options = {"per_class": [1, 2, 8], "repetitions": 4}
    once, data, codes = (
        semi_supervised.evaluate_codes(copied, labels, count=count, generator=seeded(), **options)
        for copied, count in ((x[None], "codes"), (x.repeat(30, 1, 1), "data"), (x.repeat(30, 1, 1), "codes"))
    )
    assert torch.equal(data.accuracy, once.accuracy) and torch.equal(data.neighbours, 30 * once.neighbours)
    assert int(once.neighbours.max()) > 1
    assert int(codes.neighbours.max()) == 1  # ten of thirty twins: all candidates are one neighbour
    assert not torch.equal(codes.accuracy, once.accuracy)
    with pytest.raises(DataError, match="'codes', 'data'"):
        semi_supervised.evaluate_codes(x[None], labels, [1], count="people")  # pyright: ignore[reportArgumentType]


def test_held_out_data_are_judged_where_it_is_said():
    copies, labels = noisy_copies(copies=4)
    at = copies.mean(0)
    fold = neighbours.grouped_folds(labels, 2, seeded(3))
    right = torch.zeros(10)
    for part in (0, 1):
        held = fold == part
        for k in range(1, 11):
            theirs = KNeighborsClassifier(k).fit(*neighbours.labelled_copies(copies[:, ~held], labels[~held]))
            right[k - 1] += (torch.from_numpy(theirs.predict(at[held])) == labels[held]).sum()
    assert neighbours.choose_k(copies, labels, at=at, generator=seeded(3)) == int(right.argmax()) + 1
    with pytest.raises(DataError, match="at must be"):
        neighbours.choose_k(copies, labels, at=copies)


def test_balanced_accuracy_of_one_who_always_says_the_same_is_a_half():
    x, labels = codes_and_labels(n=60)
    rare = torch.stack([(torch.arange(60) < 6).long(), labels % 2], 1)
    result = semi_supervised.evaluate_multilabel_codes(x[None], rare, 50, candidates=[25], generator=seeded())
    for row, chosen in enumerate(torch.randperm(60, generator=g)[:50] for g in [seeded()] for _ in range(5)):
        kept = torch.ones(60, dtype=torch.bool)
        kept[chosen] = False
        truth, answers = rare[kept], neighbours.predict(x[chosen], rare[chosen], x[kept], [25])[0]
        for column in range(2):
            rates = [(answers[truth[:, column] == v, column] == v).double().mean() for v in (0, 1)]
            expected = float(sum(rates)) / 2
            assert float(result.balanced[row, column]) == pytest.approx(expected, nan_ok=True)
    known = result.balanced[:, 0][~result.balanced[:, 0].isnan()]
    assert len(known) and torch.equal(known, torch.full_like(known, 0.5)) and result.accuracy[:, 0].mean() > 0.8


@pytest.mark.parametrize("shape", [(10, 3), (0, 10, 3)])
def test_codes_of_a_wrong_shape_are_refused(shape):
    with pytest.raises(DataError, match="codes must be"):
        semi_supervised.evaluate_codes(torch.zeros(shape), torch.arange(10) % 2, [1], means=torch.zeros(10, 3))


def test_many_labels():
    generator = seeded()
    attributes = torch.rand(50, 2, generator=generator) < torch.tensor([0.5, 0.1])
    x = 50.0 * attributes[:, :1].double().repeat(1, 3) + torch.randn(50, 3, generator=generator, dtype=torch.float64)
    names = ("visible", "hidden")
    result = semi_supervised.evaluate_multilabel(
        identity(scale=0.01), x, attributes, 10, names=names, repetitions=4, copies=3, generator=seeded()
    )
    assert result.accuracy.shape == (4, 2)
    assert torch.equal(result.accuracy[:, 0], torch.ones(4, dtype=torch.float64))
    assert result.overall == pytest.approx(float(result.accuracy.mean()))
    assert len(result.neighbours) == 4
    assert (result.majority[:, 1] > 0.8).all()
    lines = str(result).splitlines()
    assert lines[0] == "10 labelled, 3 code(s) each, 4 repetition(s)"
    assert lines[2].split()[:2] == ["visible", "1.0000"]
    assert lines[-1].split()[0] == "overall"
    one = semi_supervised.evaluate_multilabel(identity(), x, attributes.long(), 1, repetitions=1)
    assert one.neighbours == (1,)


def test_digits_with_few_labels(digits):
    model, _, x, labels = digits
    result = semi_supervised.evaluate(model, x, labels, [1, 10], repetitions=5, generator=seeded())
    assert result.copies == 1  # a plain autoencoder has one code
    few, more = result.accuracy.mean(1)
    assert 0.3 < few < more
    assert more > 0.7


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (torch.zeros(9, dtype=torch.long), {}, r"labels must be \[n\]"),
        (torch.zeros(10, 2, dtype=torch.long), {}, r"labels must be \[n\]"),
        (torch.zeros(10), {}, "integers from 0"),
        (torch.full((10,), -1), {}, "integers from 0"),
        (torch.arange(10) % 2, {"per_class": [6]}, "at most the 5 data of the smallest class"),
        (torch.arange(10) % 2, {"per_class": [5]}, "left for evaluation"),
        (torch.arange(10) % 2, {"per_class": [0]}, "at least 1"),
        (torch.arange(10) % 2, {"per_class": []}, "per_class"),
        (torch.arange(10) % 2, {"repetitions": 0}, "repetitions is 0"),
        (torch.arange(10) % 2, {"copies": 0}, "copies is 0"),
    ],
)
def test_bad_labels_are_refused(labels, options, message):
    x = torch.zeros(10, 3, dtype=torch.float64)
    with pytest.raises(DataError, match=message):
        semi_supervised.evaluate(identity(), x, labels, **{"per_class": [1], **options})


def test_bad_attributes_are_refused():
    x, yes = torch.zeros(10, 3, dtype=torch.float64), torch.ones(10, 2, dtype=torch.bool)
    with pytest.raises(DataError, match=r"\[n, A\]"):
        semi_supervised.evaluate_multilabel(identity(), x, yes[:, 0])
    with pytest.raises(DataError, match="1 names, 2 columns"):
        semi_supervised.evaluate_multilabel(identity(), x, yes, 2, names=["a"])
    with pytest.raises(DataError, match="yes or no"):
        semi_supervised.evaluate_multilabel(identity(), x, 2 * yes.long(), 2)
    for labelled in (0, 10):
        with pytest.raises(DataError, match="labelled="):
            semi_supervised.evaluate_multilabel(identity(), x, yes, labelled)


def test_bad_codes_are_refused():
    codes, labels = codes_and_labels(n=6)
    with pytest.raises(DataError, match=r"codes \[n, K\]"):
        neighbours.predict(codes, labels[:5], codes, [1])
    with pytest.raises(DataError, match="finite"):
        neighbours.predict(codes * torch.nan, labels, codes, [1])
    with pytest.raises(DataError, match="integers"):
        neighbours.predict(codes, labels.double(), codes, [1])
    for ks in ([0], [7], []):
        with pytest.raises(DataError, match="between 1 and"):
            neighbours.predict(codes, labels, codes, ks)
