"""Downloads with checksums. An interrupted download resumes where it stopped."""

import gzip
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from scalespaces._extras import require
from scalespaces._files import digest, open_packed, prepare, regular, replacing
from scalespaces._progress import Progress

_BLOCK = 2**18


@dataclass(frozen=True)
class Remote:
    """A dataset that can be downloaded: folders on servers, tried in this order, and its files with MD5 checksums."""

    about: str
    urls: tuple[str, ...]
    files: dict[str, str]
    unpack: bool = False
    most: int = 2**33  # bytes of each file


REMOTES = {
    "mnist": Remote(
        "70,000 handwritten digits of 28 x 28 pixels (IDX, 11 MB)",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        most=2**24,
    ),
    "fashion-mnist": Remote(
        "70,000 pieces of clothing of 28 x 28 pixels (IDX, 30 MB)",
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        most=2**25,
    ),
    # The authors' page swaps the checksums of valid and test; these belong to the files' names.
    "pcam": Remote(
        "PatchCamelyon, 327,680 patches of 96 x 96 pixels (HDF5, 7.7 GB to download, 9.1 GB unpacked)",
        ("https://zenodo.org/records/2546921/files/",),
        {
            "camelyonpatch_level_2_split_train_x.h5.gz": "1571f514728f59376b705fc836ff4b63",
            "camelyonpatch_level_2_split_train_y.h5.gz": "35c2d7259d906cfc8143347bb8e05be7",
            "camelyonpatch_level_2_split_valid_x.h5.gz": "d5b63470df7cfa627aeec8b9dc0c066e",
            "camelyonpatch_level_2_split_valid_y.h5.gz": "2b85f58b927af9964a4c15b8f7e8f179",
            "camelyonpatch_level_2_split_test_x.h5.gz": "d8c2d60d490dbd479f8199bdfa0cf6ec",
            "camelyonpatch_level_2_split_test_y.h5.gz": "60a7035772fbdb7f34eb86d4420cf66a",
        },
        unpack=True,
    ),
}
BY_HAND = {
    "cityscapes": "Cityscapes can only be downloaded after registration: register at "
    "https://www.cityscapes-dataset.com, download leftImg8bit_trainvaltest.zip (11 GB) and "
    "gtFine_trainvaltest.zip (241 MB), and unzip both in one folder"
}


def fetch(name: str, folder: str | Path, *, mirror: str | None = None, force: bool = False) -> list[Path]:
    """Download a dataset and return its files. Existing files stay, and an interrupted download resumes.

    A file gets its final name once it is complete and its checksum is right. Until then it is called ``*.part``.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"`` or ``"pcam"``.
        folder: where the files go.
        mirror: address of another folder with the same files.
        force: replace existing files that have another checksum, and download unpacked ones again.
    """
    if name in BY_HAND:
        raise ValueError(BY_HAND[name])
    if name not in REMOTES:
        raise ValueError(f"no dataset is called {name!r}; there are {', '.join([*REMOTES, *BY_HAND])}")
    remote = REMOTES[name]
    urls = remote.urls if mirror is None else (mirror.rstrip("/") + "/",)
    return [_fetch_file(urls, remote, Path(folder, file), md5, force) for file, md5 in remote.files.items()]


def _fetch_file(urls: tuple[str, ...], remote: Remote, path: Path, md5: str, force: bool) -> Path:
    final = path.with_suffix("") if remote.unpack else path
    if final.exists() and not force:
        if not remote.unpack and digest(final, "md5") != md5:
            raise FileExistsError(f"{str(final)!r} exists, with another checksum; move it or use force to replace it")
        return final  # unpacked files are in place only if the checksum was right
    if not (path.exists() and digest(path, "md5") == md5):
        _download(urls, prepare(path), md5, remote.most)
    if remote.unpack:
        try:
            with open_packed(path) as packed, replacing(final) as draft, draft.open("wb") as out:
                shutil.copyfileobj(packed, out, _BLOCK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{str(path)!r} is damaged: {error}") from error
        path.unlink()
    return final


def _download(urls: tuple[str, ...], path: Path, md5: str, most: int) -> None:
    requests, urllib3 = (require(name, "train") for name in ("requests", "urllib3"))
    part, failures = path.with_name(path.name + ".part"), []
    if part.is_symlink():
        raise OSError(f"{str(part)!r} is a link, and the download would overwrite another file; delete the link")
    for base in urls:
        url = urljoin(base, path.name)
        try:
            _receive(url, regular(part), most)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            response = getattr(error, "response", None)
            reason = error if response is None else f"the server says {response.status_code} {response.reason}"
            failures.append(f"{url}: {reason}")
            continue
        if digest(part, "md5") == md5:
            os.replace(part, path)
            return
        wrong = f"it has more than {most:,} bytes" if part.stat().st_size > most else "its checksum is wrong"
        part.unlink()
        failures.append(f"{url}: {wrong}, so the download was deleted")
    raise OSError(f"cannot download {path.name}; {'; '.join(failures)}; run it again to resume where it stopped")


def _receive(url: str, part: Path, most: int) -> None:
    """Download what is still missing of a file, and stop when it has more than ``most`` bytes."""
    have = part.stat().st_size if part.exists() else 0
    # Compressed files are stored as they are.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with require("requests", "train").get(url, headers=headers, stream=True, timeout=30) as response:
        if response.status_code == 416:  # nothing is missing; the checksum tells whether it is right
            return
        response.raise_for_status()
        if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0  # the server starts over
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() else None
        with part.open("ab" if have else "wb") as out, Progress(url, total, " MB", 1e6) as line:
            line.add(have)
            for block in response.raw.stream(_BLOCK, decode_content=False):
                out.write(block)
                line.add(len(block))
                if out.tell() > most:
                    break
