"""The report: one page that contains everything it shows."""

import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from html import escape
from importlib import metadata, resources
from pathlib import Path
from string import Template

from scalespaces._html import data_url, encode, image, svg, table_row
from scalespaces.demo._charts import accuracy, named, swatch
from scalespaces.demo._result import SIZES, TRAINED, Method, Result, per_cent, verdicts
from scalespaces.plotting import plot_equivariance
from scalespaces.testing import EquivarianceTable
from scalespaces.theory import blur_variance

_KEPT, _BROKEN = "<b class=kept>✓ kept</b>", "<b class=broken>✗ not kept</b>"
_PAGES = ("index", "when", "results", "performance", "theory", "howto/convert", "howto/not_equivariant")
_LIFTS = {"direct, dense": "The paper's lift", "cascade, pyramid": "This library's"}


def guide(folder: Path) -> str:
    """Where the pages of the documentation are, seen from a folder, with ``{}`` for a name.

    In a checkout it is the site, if it is built, or its sources; elsewhere the address in the package's metadata.
    """
    root = Path(__file__).resolve().parents[3]
    for place, kind in ((root / "out" / "docs", "html"), (root / "docs", "md")):
        if (place / f"index.{kind}").is_file():
            return Path(os.path.relpath(place, folder.resolve()), f"{{}}.{kind}").as_posix()
    addresses = dict(line.split(", ", 1) for line in metadata.metadata("scalespaces").get_all("Project-URL") or [])
    return addresses["Documentation"].replace("index.md", "{}.md")


def render(result: Result, guide: str = "docs/{}.md") -> str:
    """The page as HTML; ``guide`` says where the documentation is."""
    checked, facts, far = verdicts(result), result.facts, SIZES[-1]
    cnn, tta, ours = (result.method(key) for key in ("cnn", "tta", "ours"))
    (worst, worst_at), (cnn_worst, cnn_worst_at) = (min((m.mean(s), s) for s in SIZES) for m in (ours, cnn))
    octave = 1 / math.log2(result.downscalings[1] / result.downscalings[0])
    several = f"Means over {len(result.seeds)} seeds; the bands, and the numbers after ±, are standard deviations."
    single = f"One seed ({result.seeds[0]}): a single run, without an estimate of its spread."
    pictures = [result.shown(size).picture for size in SIZES]
    fields = {name: escape(str(value)) for name, value in facts.items()} | {
        **{f"guide_{page.replace('/', '_')}": escape(guide.format(page)) for page in _PAGES},
        "css": _read("report.css"),
        "js": _read("report.js"),
        "data": _data(result),
        "far": named(far),
        **{f"{method.key}_far": _percent(method.mean(far)) for method in (cnn, ours)},
        **{f"{method.key}_trained": _percent(method.mean(TRAINED)) for method in (cnn, ours)},
        "cnn_worst": f"{_percent(cnn_worst)}, at size {named(cnn_worst_at)}",
        "ours_worst": _percent(worst),
        "ours_worst_at": named(worst_at),
        **{f"{method.key}_time": _times(method.cost.predict) for method in (ours, tta)},
        "paper_error": _mean_error(result.equivariance.get("direct, dense", {}).values()),
        "ours_error": _mean_error(result.equivariance.get("cascade, pyramid", {}).values()),
        "plot": "".join(accuracy(result.methods, pictures, wide=wide) for wide in (True, False)),
        "legend": "".join(
            f"<li class={m.key}>{swatch(m.key)}<span><b>{escape(m.name)}</b> {escape(m.about)}</span></li>"
            for m in result.methods
        ),
        "seeds": several if len(result.seeds) > 1 else single,
        "all_seeds": ", ".join(map(str, result.seeds)),
        "verdicts": "".join(
            table_row(one.promise, [escape(one.measured), _KEPT if one.kept else _BROKEN]) for one in checked
        ),
        "kept": f"{sum(one.kept for one in checked)} of {len(checked)}",
        **{key: _range(result.method(key)) for key in ("jitter", "select")},
        "scale_space": _scale_space(result),
        "pixels": _pixels(result),
        "activations": _activations(result),
        "octave": f"{octave:.0f} level{'s' * (round(octave) > 1)}",
        "moves": _moves(result),
        "errors": _errors(result),
        "costs": _costs(result),
        "accuracies": _accuracies(result),
        **{key: ", ".join(f"{scale:g}" for scale in facts[key]) for key in ("tta", "selection")},
        "twice_epochs": str(2 * facts["epochs"]),
    }
    return Template(_read("report.html")).substitute(fields)


def _read(name: str) -> str:
    return resources.files("scalespaces.demo").joinpath("page", name).read_text(encoding="utf-8")


def _data(result: Result) -> str:
    """What the script shows, as JSON that cannot end the element around it."""
    levels = [f"level {k}, {seen}" for k, seen in _levels(result).items()]
    series = [
        {"label": label, "frames": [asdict(frame) | {"picture": data_url(frame.picture)} for frame in frames]}
        for label, frames in result.series.items()
    ]
    return json.dumps({"levels": levels, "series": series}, separators=(",", ":")).replace("<", "\\u003c")


def _levels(result: Result) -> dict[int, str]:
    """How small each level sees the image, by its number."""
    words = (f"÷{small:g}" if small >= 1 else f"×{1 / small:.3g}" for small in result.downscalings)
    return dict(enumerate(words, result.first_level))


def _percent(value: float) -> str:
    return f"{per_cent(value)}&nbsp;%"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×"


def _range(method: Method) -> str:
    means = [method.mean(size) for size in SIZES]
    return f"{_percent(min(means))} to {_percent(max(means))}"


def _mean_error(tables: Iterable[EquivarianceTable]) -> str:
    """The mean of the errors before the boundary, past which filters look beyond the last level."""
    errors = [error for table in tables for error in table.before(table.boundary).tolist()]
    mean = statistics.fmean(errors) if errors else None
    return "none" if mean is None else f"{mean:.1e}" if mean else "0"


def _scale_space(result: Result) -> str:
    """A row for each sampling. A picture is as wide, relative to the first, as its level has samples."""
    rows = []
    for name, space in result.scale_space.items():
        cells = []
        for k, level in enumerate(space.levels):
            height, width = level.shape[2:]
            words = f"{width} × {height}, step {space.steps[k]:g}, blur {math.sqrt(blur_variance(2**k, 0.25)):.2f}"
            jpeg, part = encode(level[0], "JPEG", "demo", quality=85), f"--part:{width / space.levels[0].shape[3]:g}"
            cells.append(f"{image(f'level {k}: {words}', jpeg, 'jpeg', style=part)}<small>{words}</small>")
        rows.append(table_row(name, cells))
    return "".join(rows)


def _pixels(result: Result) -> str:
    """The number of samples of all levels relative to the first, in words."""
    counts = {name: [level[0, 0].numel() for level in space.levels] for name, space in result.scale_space.items()}
    return ", ".join(f"the {escape(name)} levels have {sum(n) / n[0]:.2f} times" for name, n in counts.items())


def _activations(result: Result) -> str:
    """A row for each size: the digit, and for each level its features and its share in the answer."""
    heads = "".join(f'<th scope="col">level {k}<small>{seen}</small></th>' for k, seen in _levels(result).items())
    rows = []
    for size, levels in result.activations.items():
        digit = result.shown(size)
        cells = [f"<td>{image(f'the digit at size {named(size)}', digit.picture)}</td>"]
        for k, (level, share) in enumerate(zip(levels, digit.shares, strict=True), result.first_level):
            most = " class=most" if share == max(digit.shares) else ""
            drawn = image(f"level {k} at size {named(size)}", level)
            cells.append(f"<td{most}>{drawn}<small>{100 * share:.0f} %</small></td>")
        rows.append(f'<tr><th scope="row">{named(size)}</th>{"".join(cells)}</tr>')
    head = f'<tr><th scope="col">size</th><th scope="col">digit</th>{heads}</tr>'
    return f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody>"


def _moves(result: Result) -> str:
    """The level that answers, averaged by the shares and over the digits, at the sizes where its features are shown."""
    found = {
        frames[0].size: [statistics.fmean(level) for level in zip(*(f.shares for f in frames), strict=True)]
        for frames in zip(*result.series.values(), strict=True)
    }
    means = {size: sum(k * s for k, s in enumerate(found[size], result.first_level)) for size in result.activations}
    return ", ".join(f"{mean:.1f} at size {named(size)}" for size, mean in means.items())


def _errors(result: Result) -> str:
    """The errors of random networks, and a table of their means."""
    found = result.equivariance
    about = "Equivariance errors over levels, for each lift and number of layers"
    figure = plot_equivariance({lift: [*tables.values()] for lift, tables in found.items()})
    drawn, layers = image(about, svg(figure), "svg+xml"), next(iter(found.values()))
    head = "".join(f'<th scope="col">{n} layer{"s" * (n > 1)}</th>' for n in layers)
    means = {lift: [_mean_error([table]) for table in tables.values()] for lift, tables in found.items()}
    rows = (table_row(f"{_LIFTS.get(lift, 'Lift')} ({lift})", mean) for lift, mean in means.items())
    table = f'<thead><tr><th scope="col">lift</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
    table = f'<table class="numbers"><caption>Mean error before the boundary</caption>{table}</table>'
    return f'<figure class="drawn">{drawn}</figure>{table}'


def _costs(result: Result) -> str:
    rows = []
    for method in result.methods:
        cost = method.cost
        times = map(_times, (cost.predict, cost.predict_memory, cost.train, cost.train_memory))
        rows.append(table_row(method.name, [*times, f"{cost.parameters:,}"], class_=method.key))
    return "".join(rows)


def _accuracies(result: Result) -> str:
    heads = "".join(f'<th scope="col">{named(size)}</th>' for size in SIZES)
    rows = (table_row(m.name, map(m.per_cent, SIZES), class_=m.key) for m in result.methods)
    return f'<thead><tr><th scope="col">size</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody>'
