"""The report: one page with everything in it."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from scalespaces.demo import _charts as charts
from scalespaces.demo._charts import named, picture
from scalespaces.demo._result import SIZES, TRAINED, Activations, Errors, Frame, Level, Result, per_cent, verdicts

_LIFTS = {"direct, dense": "The paper's lift", "cascade, pyramid": "This library's"}
_SHOWN = 5  # the digit of the plot's pictures


def render(result: Result) -> str:
    """The page as HTML."""
    fields = {
        "css": _page("report.css"),
        "js": _page("report.js"),
        "data": _data(result),
        "summary": _summary(result),
        "plot": _plot(result),
        "legend": _legend(result),
        "keys": _keys(result),
        "seeds": _seeds(result),
        "verdicts": _verdicts(result),
        "kept": _kept(result),
        "jitter": _range(result, "jitter"),
        "select": _range(result, "select"),
        "scale_space": _scale_space(result),
        "pixels": _pixels(result),
        "activations": _activations(result),
        "octave": _octave(result),
        "shares": charts.shares(result.series, result.first_level),
        "moves": _moves(result),
        "errors": _errors(result),
        "costs": _costs(result),
        "accuracies": _accuracies(result),
        "facts": _facts(result),
    }
    return Template(_page("report.html")).substitute(fields)


def _page(name: str) -> str:
    return resources.files("scalespaces.demo").joinpath("page", name).read_text(encoding="utf-8")


def _data(result: Result) -> str:
    """What the script shows."""

    def frame(one: Frame) -> dict[str, object]:
        shown = picture(one.picture)
        return {"size": one.size, "picture": shown, "cnn": one.cnn, "ours": one.ours, "shares": one.shares}

    series = [{"label": one.label, "frames": list(map(frame, one.frames))} for one in result.series]
    levels = [f"level {k}, {seen}" for k, seen in _levels(result).items()]
    return _json({"levels": levels, "series": series})


def _levels(result: Result) -> dict[int, str]:
    """How small each level sees the image, by its number."""
    words = (f"÷{small:g}" if small >= 1 else f"×{1 / small:.3g}" for small in result.downscalings)
    return dict(enumerate(words, result.first_level))


def _json(value: object) -> str:
    r"""JSON that cannot end the element around it.

    Example:
        >>> _json("</script>")
        '"\\u003c/script>"'
    """
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _summary(result: Result) -> str:
    cnn, ours, far = result.method("cnn"), result.method("ours"), SIZES[-1]
    same = cnn.cost.parameters == ours.cost.parameters
    size = "as many parameters" if same else f"{ours.cost.parameters:,} parameters"
    return (
        f"Trained on {_count(result, 'train_digits')} handwritten digits of one size and asked about "
        f"{_count(result, 'test_digits')} others, {named(far)} times as large, a CNN has "
        f"<strong class=cnn>{_percent(cnn.mean(far))}</strong> right. A scale-space network with {size}, trained on "
        f"the same digits, has <strong class=ours>{_percent(ours.mean(far))}</strong>."
    )


def _count(result: Result, fact: str) -> str:
    return f"{result.facts[fact]:,}"


def _percent(value: float) -> str:
    return f"{per_cent([value])}&nbsp;%"


def _plot(result: Result) -> str:
    frames = next((one.frames for one in result.series if one.label == _SHOWN), result.series[0].frames)
    pictures = [min(frames, key=lambda frame: abs(frame.size - size)).picture for size in SIZES]
    return "".join(charts.accuracy(result.methods, pictures, wide=wide) for wide in (True, False))


def _legend(result: Result) -> str:
    return "".join(
        f"<li class={m.key}>{charts.swatch(m.key)}<span><b>{escape(m.name)}</b> {escape(m.about)}</span></li>"
        for m in result.methods
    )


def _keys(result: Result) -> str:
    """The numbers beside the plot."""
    cnn, tta, ours = (result.method(key) for key in ("cnn", "tta", "ours"))
    worst = {method.key: min(SIZES, key=method.mean) for method in (cnn, ours)}
    numbers = [
        (
            _percent(ours.mean(worst["ours"])),
            f"right at its worst size, {named(worst['ours'])}; "
            f"the CNN's worst is {_percent(cnn.mean(worst['cnn']))}, at size {named(worst['cnn'])}",
        ),
        (_percent(ours.mean(TRAINED)), f"right at the trained size; the CNN {_percent(cnn.mean(TRAINED))}"),
        (
            _times(ours.cost.predict),
            f"the CNN's time to answer; test-time augmentation takes {_times(tta.cost.predict)}",
        ),
        *_error_key(result.equivariance),
    ]
    return "".join(f"<li><b>{number}</b> <span>{words}</span></li>" for number, words in numbers)


def _error_key(found: Sequence[Errors]) -> list[tuple[str, str]]:
    means = {lift: _mean(found, lift) for lift in _LIFTS}
    if any(mean is None for mean in means.values()):
        return []
    paper, ours = map(_error, means.values())
    return [(ours, f"equivariance error: how far features are from merely shifting; the paper's lift {paper}")]


def _mean(found: Sequence[Errors], lift: str, layers: int | None = None) -> float | None:
    """The mean of the errors before the boundary; None if there are none."""
    chosen = [one for one in found if one.lift == lift and layers in (None, one.layers)]
    errors = [error for one in chosen for error in one.before()]
    return statistics.fmean(errors) if errors else None


def _error(value: float | None) -> str:
    return "none" if value is None else f"{value:.1e}" if value else "0"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×"


def _seeds(result: Result) -> str:
    if len(result.seeds) == 1:
        return f"One seed ({result.seeds[0]}): a single run, without an estimate of its spread."
    return f"Means over {len(result.seeds)} seeds; the bands, and the numbers after ±, are standard deviations."


def _verdicts(result: Result) -> str:
    rows = []
    for verdict in verdicts(result):
        state = "<td class=kept>✓ kept</td>" if verdict.kept else "<td class=broken>✗ not kept</td>"
        rows.append(
            f'<tr><th scope="row">{escape(verdict.promise)}</th><td>{escape(verdict.measured)}</td>{state}</tr>'
        )
    return "".join(rows)


def _kept(result: Result) -> str:
    found = verdicts(result)
    return f"{sum(verdict.kept for verdict in found)} of {len(found)}"


def _range(result: Result, key: str) -> str:
    means = [result.method(key).mean(size) for size in SIZES]
    return f"{_percent(min(means))} to {_percent(max(means))}"


def _scale_space(result: Result) -> str:
    rows = []
    for name, levels in result.scale_space.items():
        cells = "".join(_level(k, level, levels[0]) for k, level in enumerate(levels))
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return "".join(rows)


def _level(k: int, level: Level, first: Level) -> str:
    words = f"{level.width} × {level.height}, step {level.step:g}, blur {level.sigma:.2f}"
    image = _image(picture(level.picture, "jpeg"), f"level {k}: {words}", f"--part:{level.width / first.width:g}")
    return f"<td>{image}<small>{words}</small></td>"


def _image(address: str, words: str, style: str = "") -> str:
    return f'<img src="{address}" alt="{escape(words)}"{f" style={style}" if style else ""}>'


def _pixels(result: Result) -> str:
    """How many samples the levels have, in words."""
    counts = {
        name: sum(level.width * level.height for level in levels) / (levels[0].width * levels[0].height)
        for name, levels in result.scale_space.items()
    }
    return ", ".join(f"{escape(name)} levels together have {count:.2f} times" for name, count in counts.items())


def _activations(result: Result) -> str:
    heads = "".join(f'<th scope="col">level {k}<small>{seen}</small></th>' for k, seen in _levels(result).items())
    rows = "".join(_activation(one, result.first_level) for one in result.activations)
    return f'<thead><tr><th scope="col">size</th><th scope="col">digit</th>{heads}</tr></thead><tbody>{rows}</tbody>'


def _activation(one: Activations, first: int) -> str:
    most = max(one.shares)
    cells = []
    for k, (level, share) in enumerate(zip(one.levels, one.shares, strict=True), first):
        words = f"level {k} at size {named(one.size)}"
        answers = " class=most" if share == most else ""
        cells.append(f"<td{answers}>{_image(picture(level), words)}<small>{100 * share:.0f} %</small></td>")
    digit = _image(picture(one.picture), f"the digit at size {named(one.size)}")
    return f'<tr><th scope="row">{named(one.size)}</th><td>{digit}</td>{"".join(cells)}</tr>'


def _octave(result: Result) -> str:
    """How many levels twice the size is."""
    levels = 1 / math.log2(result.downscalings[1] / result.downscalings[0])
    return f"{levels:.0f} level{'' if round(levels) == 1 else 's'}"


def _moves(result: Result) -> str:
    """The levels that answer, averaged by their shares, at the sizes where there are pictures of them."""
    found = charts.mean_shares(result.series)
    sizes = [size for size in found if size in [one.size for one in result.activations]]
    means = {size: sum(k * share for k, share in enumerate(found[size], result.first_level)) for size in sizes}
    return ", ".join(f"{mean:.1f} at size {named(size)}" for size, mean in means.items())


def _errors(result: Result) -> str:
    """A chart for each lift and depth."""
    found, lowest = result.equivariance, charts.lowest(result.equivariance)
    figures = []
    for one in found:
        lift = f"{_LIFTS.get(one.lift, 'Lift')} ({one.lift})"
        words = f"<b>{escape(lift)}</b>{_layers(one.layers)}, mean {_error(_mean(found, one.lift, one.layers))}"
        figures.append(f"<figure><figcaption>{words}</figcaption>{charts.errors(one, lowest)}</figure>")
    return "".join(figures)


def _layers(count: int) -> str:
    return f"{count} layer{'s' * (count > 1)}"


def _costs(result: Result) -> str:
    return "".join(
        _row(
            m.name,
            m.key,
            [
                *map(_times, (m.cost.predict, m.cost.predict_memory, m.cost.train, m.cost.train_memory)),
                f"{m.cost.parameters:,}",
            ],
        )
        for m in result.methods
    )


def _accuracies(result: Result) -> str:
    heads = "".join(f'<th scope="col">{named(size)}</th>' for size in SIZES)
    rows = "".join(_row(m.name, m.key, [per_cent([m.mean(s), m.spread(s)]) for s in SIZES]) for m in result.methods)
    return f'<thead><tr><th scope="col">size</th>{heads}</tr></thead><tbody>{rows}</tbody>'


def _row(name: str, key: str, cells: Iterable[str]) -> str:
    return f'<tr class={key}><th scope="row">{escape(name)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _facts(result: Result) -> str:
    facts = result.facts
    listed = {
        "Digits": f"{facts['train_digits']} to learn from, {facts['test_digits']} others to test with",
        "Seeds": ", ".join(map(str, result.seeds)),
        "Epochs": f"{facts['epochs']}; {2 * facts['epochs']} for the CNN that learns all sizes",
        "Size 1": f"{facts['side']} pixels",
        "Canvas": f"{facts['small_canvas']} × {facts['small_canvas']} pixels for digits of size 1 alone, "
        f"{facts['large_canvas']} × {facts['large_canvas']} for all sizes",
        "Scales of TTA": ", ".join(f"{scale:g}" for scale in facts["tta"]),
        "Scales of selection": ", ".join(f"{scale:g}" for scale in facts["selection"]),
        "Machine": f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads, "
        f"load average {facts['load_average']} at the start",
        "Versions": f"scalespaces {facts['scalespaces']}, torch {facts['torch']}, Python {facts['python']}",
        "Took": f"{facts['seconds']:g} seconds",
    }
    return "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in listed.items())
