"""The page: gradio's components, and what each of them shows."""

import logging
import os
from collections.abc import Callable
from functools import partial, wraps
from html import escape
from importlib import resources
from typing import Any

from scalespaces._choices import METHODS
from scalespaces._extras import require
from scalespaces.app import _render as render
from scalespaces.app._errors import LAYERS, NETWORKS, SIDES, equivariance
from scalespaces.app._explore import MOST_LEVELS, lift_arguments, scale_space
from scalespaces.app._guard import Guard
from scalespaces.app._images import Picture, first_picture, read_picture
from scalespaces.app._predictions import CLOSEST, FARTHEST, LIVELY, Loaded, load_network, over_zooms, predict
from scalespaces.theory._kernels import KERNELS

_HEADER = """<header class="ss-header"><h1>scalespaces</h1>
<p>An image at every scale: its levels, what they cost, and how exactly networks on them follow a change of size.</p>
</header>"""
_QUESTION = """Downscale the image, or shift its levels: an equivariant network gives the same result. The button
measures how far this network is from that."""
_LOAD = "Load a network to see its answers for the image."
_NO_IMAGE = "There is no image: drop one, or use the photograph."
_MOST_UPLOADED = 2**28  # bytes: 67 million weights; images may have a quarter of it
_SESSIONS = 8  # browser tabs whose images and networks are kept; older ones start again
_UPLOADS = 600  # seconds after which uploaded files are deleted; they are read at once
_PATIENCE = 60.0  # seconds, for a curve
_FONTS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
_PRIVATE: dict[str, Any] = {"api_visibility": "private"}  # handlers are for the page alone

Handler = Callable[..., dict[Any, Any]]
log = logging.getLogger("scalespaces.app")


def build(picture: Picture | None = None, loaded: Loaded | None = None) -> Any:
    """The page, a ``gradio.Blocks`` (extra ``app``), with what it shows at first; browser tabs share no state."""
    gr, given = _gradio(), picture is not None
    picture = picture or first_picture()
    kept = (_UPLOADS // 2, _UPLOADS)  # how often they are looked at, and how old they grow
    with gr.Blocks(title="scalespaces", analytics_enabled=False, fill_width=True, delete_cache=kept) as page:
        shown, network = gr.State(picture), gr.State(loaded)
        gr.HTML(_HEADER)
        with gr.Row():
            with gr.Column(scale=1, min_width=320):
                _add_image(gr, shown, picture)
                lift, changes = _add_lift(gr)
            with gr.Column(scale=3, min_width=320), gr.Tabs():
                with gr.Tab("Scale-space"):
                    _add_levels(gr, shown, lift, [page.load, shown.change, *changes])
                with gr.Tab("Equivariance") as tab:
                    _add_errors(gr, tab, shown, network, lift, [shown.change, *changes])
                with gr.Tab("Predictions"):
                    side, own = loaded.side if loaded else 224, min(picture.image.shape[2:])
                    if given and loaded and loaded.model.smallest_side <= own <= LIVELY:
                        side = own  # the network sees the whole image
                    _add_predictions(gr, page, shown, network, loaded, side)
    return page


def launch(page: Any, host: str, port: int | None) -> str:
    """Serve the page from a thread of its own, and return its address; it loads nothing from other hosts."""
    theme = _gradio().themes.Soft(primary_hue="indigo", neutral_hue="slate", font=_FONTS, font_mono=_MONO)
    options = dict.fromkeys(("prevent_thread_lock", "quiet", "show_error"), True)
    options |= dict.fromkeys(("share", "ssr_mode", "run_history", "enable_monitoring"), False)
    served = page.queue(api_open=False).launch(
        **options,
        server_name=host,
        server_port=port,
        max_file_size=_MOST_UPLOADED,
        state_session_capacity=_SESSIONS,
        footer_links=[],
        app_kwargs={"middleware": [require("starlette.middleware", "app").Middleware(Guard, host=host)]},
        theme=theme,
        css=resources.files("scalespaces.app").joinpath("style.css").read_text(encoding="utf-8"),
    )
    return served[1]


def _gradio() -> Any:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when it is imported
    return require("gradio", "app")


def _guarded(gr: Any, status: Any, *cleared: Any) -> Callable[[Handler], Handler]:
    """Show errors in a status line and a passing message, and clear what would show something older."""

    def wrap(handler: Handler) -> Handler:
        @wraps(handler)
        def run(*args: Any) -> dict[Any, Any]:
            try:
                return {status: ""} | handler(*args)
            except (ValueError, OSError, ImportError) as error:
                message = " ".join(" ".join([str(error), *getattr(error, "__notes__", [])]).split())
            except Exception as error:
                log.exception("unexpected error in the explorer")
                message = f"something went wrong; the terminal has details: {type(error).__name__}: {error}"[:300]
            gr.Warning(escape(message))
            return dict.fromkeys(cleared) | {status: render.problem(message)}

        return run

    return wrap


def _status(gr: Any, id: str) -> Any:
    return gr.HTML(elem_id=id, elem_classes="ss-line")


def _drop(gr: Any, label: str, id: str) -> Any:
    return gr.File(label=label, height=124, elem_id=id, elem_classes="ss-drop")


def _upload(file: Any, handler: Handler, outputs: list[Any]) -> None:
    """Read the file when it is dropped, then empty the field, which takes the next file."""
    done = file.upload(handler, file, outputs, **_PRIVATE)
    done.then(lambda: None, None, file, show_progress="hidden", **_PRIVATE)


def _slider(gr: Any, range: tuple[float, float, float, float], label: str, info: str, id: str) -> Any:
    """A slider that passes on its number as it was typed, because the handlers' errors are more helpful."""
    low, high, value, step = range
    slider = gr.Slider(low, high, value, step=step, label=label, info=info, elem_id=id)
    slider.preprocess = lambda payload: payload
    return slider


# --- the image and its lift ------------------------------------------------------------------------------------------


def _add_image(gr: Any, shown: Any, picture: Picture) -> None:
    preview, status = gr.HTML(render.preview(picture), elem_id="preview"), _status(gr, "image-status")
    file = _drop(gr, "Your image, for all tabs", "image")
    photograph = gr.Button("Use the photograph", size="sm", elem_id="photograph")

    @_guarded(gr, status, shown, preview)
    def read(path: str | None = None) -> dict[Any, Any]:
        new = first_picture() if path is None else read_picture(path)
        return {shown: new, preview: render.preview(new)}

    _upload(file, read, [shown, preview, status])
    photograph.click(read, None, [shown, preview, status], **_PRIVATE)


def _add_lift(gr: Any) -> tuple[list[Any], list[Any]]:
    """The fields of a lift, in the order of :func:`~scalespaces.app._explore.lift_arguments`, and their changes."""
    narrow = {"min_width": 130, "max_lines": 1}
    with gr.Accordion("Lift, for the tabs Scale-space and Equivariance", open=True, elem_id="lift"):
        kernels, about = [(name.replace("_", " "), name) for name in KERNELS], "alpha is the Poisson kernel"
        kernel = gr.Dropdown(kernels, value="discrete_gaussian", label="Kernel", info=about, elem_id="kernel")
        with gr.Row():
            about = "dilation from level to level: 2, √2, 3/2 ..."
            base = gr.Textbox("2", label="Base", info=about, elem_id="base", **narrow)
            about = "blur of the image itself, a variance"
            zero_scale = gr.Textbox("1/4", label="Zero-scale", info=about, elem_id="zero-scale", **narrow)
        levels = _slider(gr, (1, MOST_LEVELS, 5, 1), "Levels", "including finer ones", "number")
        first = _slider(gr, (-3, 0, 0, 1), "First level", "0 is the image itself; negative levels are finer", "first")
        names, about = ["dense", "oversampled", "pyramid"], "every pixel at every level, or coarser and coarser grids"
        sampling = gr.Radio(names, value="pyramid", label="Sampling", info=about, elem_id="sampling")
        about = "samples for each sample of a pyramid"
        oversampling = gr.Number(2, label="Oversampling", info=about, visible=False, elem_id="oversampling")
        about = "direct: one blur for each level, as in the paper; cascade: one step from level to level, exact"
        method = gr.Radio(list(METHODS), value="cascade", label="Method", info=about, elem_id="method")

    def reveal(chosen: str) -> Any:
        return gr.update(visible=chosen == "oversampled")

    sampling.change(reveal, sampling, oversampling, show_progress="hidden", **_PRIVATE)
    typed, chosen = [base, zero_scale, oversampling], [kernel, levels, first, sampling, method]
    changes = [event for field in typed for event in (field.submit, field.blur)]  # not at every letter
    fields = [kernel, base, zero_scale, levels, first, sampling, oversampling, method]
    return fields, [*changes, *(field.change for field in chosen)]


# --- the tabs --------------------------------------------------------------------------------------------------------


def _add_levels(gr: Any, shown: Any, lift: list[Any], changes: list[Any]) -> None:
    status = _status(gr, "space-status")
    levels, cost = gr.HTML(elem_id="levels", min_height=240), gr.HTML(elem_id="cost")

    @_guarded(gr, status, levels, cost)
    def explore(picture: Picture | None, *fields: Any) -> dict[Any, Any]:
        if picture is None:
            return {levels: None, cost: None}
        found, costs = scale_space(picture.image, lift_arguments(*fields))
        return {levels: render.levels(found), cost: render.facts(costs, "ss-facts")}

    gr.on(changes, explore, [shown, *lift], [levels, cost, status], trigger_mode="always_last", **_PRIVATE)


def _add_errors(gr: Any, tab: Any, shown: Any, network: Any, lift: list[Any], changes: list[Any]) -> None:
    question, first = render.note(_QUESTION), list(LAYERS)[1]
    with gr.Row():
        about = "random layers have filters of 2 levels; all except a loaded network use the lift of this page"
        wide: dict[str, Any] = {"label": "Network to measure", "scale": 2, "min_width": 260}
        which = gr.Dropdown(list(NETWORKS), value=first, info=about, elem_id="network", **wide)
        sides, about = [(f"{n} pixels", n) for n in SIDES], "of a square from the middle of the image"
        wide |= {"label": "Side to measure", "scale": 1}
        side = gr.Dropdown(sides, value=257, info=about, elem_id="measured-side", **wide)
    measure, status = gr.Button("Measure", variant="primary", elem_id="measure"), _status(gr, "error-status")
    errors, tracked = gr.HTML(question, elem_id="errors", min_height=140), gr.Progress()

    @_guarded(gr, status, errors)
    def run(
        picture: Picture | None, loaded: Loaded | None, which: str, side: int, progress: Any = tracked, *fields: Any
    ) -> dict[Any, Any]:
        if picture is None:
            raise ValueError(_NO_IMAGE)
        report = partial(progress, desc="images seen")
        found = equivariance(picture.image, lift_arguments(*fields), which, side, loaded, report)
        return {errors: render.errors(found)}

    def open_(picture: Picture | None, loaded: Loaded | None, which: str, side: int, *fields: Any) -> dict[Any, Any]:
        quick = picture is not None and which in LAYERS
        return run(picture, loaded, which, side, lambda *_, **__: None, *fields) if quick else {}

    given, found = [shown, network, which, side, *lift], [errors, status]
    # One after the other, in the order of the events: nothing older is shown after something newer.
    queued: dict[str, Any] = {"outputs": found, "concurrency_id": "errors", "concurrency_limit": 1, **_PRIVATE}
    measure.click(run, given, show_progress_on=errors, **queued)
    tab.select(open_, given, show_progress_on=errors, **queued)
    changes = [*changes, network.change, which.change, side.change]
    forget: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "multiple"}
    gr.on(changes, lambda: [question, ""], None, **forget, **queued)


def _add_predictions(gr: Any, page: Any, shown: Any, network: Any, loaded: Loaded | None, first: int) -> None:
    status, tracked = _status(gr, "model-status"), gr.Progress()
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            file, seen = _drop(gr, "Network for the last two tabs", "model"), _status(gr, "seen")
            facts = gr.HTML(render.network(loaded), elem_id="facts")
        with gr.Column(scale=3, min_width=280):
            zoom = _slider(gr, (FARTHEST, CLOSEST, 1, 0.01), "Zoom of the image", "about the center", "zoom")
            about = "of the square that the network sees, in pixels"
            side = gr.Number(first, label="Side for the network", info=about, elem_id="side")
            answer = gr.HTML(render.note(_LOAD), elem_id="answer")
            curve = gr.HTML(elem_id="curve")

    @_guarded(gr, status)
    def load(path: str) -> dict[Any, Any]:
        new = load_network(path)
        return {network: new, facts: render.network(new), side: new.side, zoom: 1}

    @_guarded(gr, status, seen, answer)
    def ask(loaded: Loaded | None, picture: Picture | None, zoom: Any, side: Any) -> dict[Any, Any]:
        if loaded is None or picture is None:
            return {seen: None, answer: render.note(_LOAD if loaded is None else _NO_IMAGE)}
        new = predict(loaded, picture.image, zoom, side)
        return {seen: render.seen(new), answer: render.prediction(new, loaded.pixels)}

    @_guarded(gr, status, curve)
    def sweep(loaded: Loaded | None, picture: Picture | None, side: Any, progress: Any = tracked) -> dict[Any, Any]:
        if loaded is None or picture is None:
            return {curve: None}
        report = partial(progress, desc="zooms")
        return {curve: render.curve(over_zooms(loaded, picture.image, side, report, _PATIENCE))}

    changes = [page.load, network.change, shown.change, side.submit, side.blur]
    last: dict[str, Any] = {"trigger_mode": "always_last", **_PRIVATE}
    _upload(file, load, [network, facts, side, zoom, status])
    gr.on([*changes, zoom.change], ask, [network, shown, zoom, side], [seen, answer, status], **last)
    gr.on(changes, sweep, [network, shown, side], [curve, status], **last)
