"use strict";
(() => {
  const get = id => document.getElementById(id);
  const make = (tag, parent, words = "", kind = "") => {
    const made = document.createElement(tag);
    made.textContent = words;
    if (kind) made.className = kind;
    parent.append(made);
    return made;
  };

  // Light and dark: the system's choice until the button says otherwise; storage may be forbidden.
  const root = document.documentElement, theme = get("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => { try { return sessionStorage.getItem("theme"); } catch { return null; } };
  const remember = chosen => { try { sessionStorage.setItem("theme", chosen); } catch { /* for this page, then */ } };
  const dress = chosen => {
    if (chosen) root.dataset.theme = chosen;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
    theme.textContent = dark ? "Light" : "Dark";
    theme.setAttribute("aria-label", `Use ${dark ? "light" : "dark"} colors`);
  };
  theme.addEventListener("click", () => {
    const chosen = theme.textContent.toLowerCase();
    remember(chosen);
    dress(chosen);
  });
  system.addEventListener("change", () => dress());
  theme.hidden = false;
  dress(remembered());

  // Tables and figures that continue to the right
  for (const wide of document.querySelectorAll(".scroll")) {
    const look = () => wide.classList.toggle("more", wide.scrollLeft + wide.clientWidth < wide.scrollWidth - 1);
    wide.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(wide);
  }

  // Charts: all numbers at the size under the pointer, or at the one that the arrow keys choose
  const tip = make("div", document.body, "", "tip");
  tip.hidden = true;
  tip.setAttribute("aria-live", "polite");
  for (const chart of document.querySelectorAll("svg.chart")) {
    chart.querySelectorAll("title").forEach(title => title.remove());
    const methods = [...chart.querySelectorAll("g")].map(group => [...group.querySelectorAll(".marker")]);
    const box = marker => marker.getBoundingClientRect();
    const middle = rect => rect.left + rect.width / 2, height = rect => rect.top + rect.height / 2;
    let now = methods[0].findIndex(marker => marker.dataset.size === "1");
    const hide = () => {
      tip.hidden = true;
      chart.querySelectorAll(".near").forEach(marker => marker.classList.remove("near"));
    };
    const tell = place => {
      hide();
      now = Math.min(Math.max(place, 0), methods[0].length - 1);
      const column = methods.map(markers => markers[now]).sort((a, b) => height(box(a)) - height(box(b)));
      tip.replaceChildren();
      make("b", tip, `size ${column[0].dataset.size}`);
      for (const marker of column) {
        marker.classList.add("near");
        const row = make("p", tip, "", marker.parentElement.getAttribute("class"));
        make("span", row, marker.parentElement.dataset.name);
        make("span", row, marker.dataset.value);
      }
      tip.hidden = false;
      const at = middle(box(column[0])), page = root.clientWidth, right = at + 14 + tip.offsetWidth <= page;
      tip.style.left = `${Math.max(4, right ? at + 14 : at - 14 - tip.offsetWidth) + scrollX}px`;
      tip.style.top = `${chart.getBoundingClientRect().top + scrollY + chart.clientHeight * 0.12}px`;
    };
    const point = event => {
      const far = methods[0].map(marker => Math.abs(middle(box(marker)) - event.clientX));
      tell(far.indexOf(Math.min(...far)));
    };
    chart.addEventListener("pointermove", point);
    chart.addEventListener("pointerdown", point);
    chart.addEventListener("pointerleave", event => event.pointerType === "mouse" && hide());
    chart.addEventListener("focus", () => tell(now));
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", event => {
      const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: methods[0].length - 1 };
      if (event.key === "Escape") hide();
      else if (event.key in moves) { event.preventDefault(); tell(moves[event.key]); }
    });
  }

  // The viewer
  const { series, levels: names } = JSON.parse(get("data").textContent);
  const slider = get("size"), count = series[0].frames.length;
  const networks = ["cnn", "ours"];
  const named = size => size === 0.5 ? "1/2" : String(size);
  const percent = value => `${Math.round(100 * value)} %`;
  const sure = value => value > 0.99 ? "> 99 %" : percent(value);
  const top = values => values.indexOf(Math.max(...values));
  let chosen = 0;

  const digits = series.map(({ label, frames }, n) => {
    const button = make("button", get("digits"));
    button.type = "button";
    button.setAttribute("aria-label", `digit ${label}`);
    const image = make("img", button);
    image.src = frames[count - 1].picture;
    image.alt = "";
    button.addEventListener("click", () => { chosen = n; show(); });
    return button;
  });
  const bars = Object.fromEntries(networks.map(key => [key, series[0].frames[0][key].map((_, digit) => {
    const bar = make("li", get(key).querySelector(".bars"));
    make("i", bar);
    make("span", bar, String(digit));
    return bar;
  })]));
  const levels = names.map(name => {
    const level = make("li", get("levels"));
    make("span", level, name);
    make("i", level);
    make("span", level);
    return level;
  });
  for (const wanted of [0.5, 1, 2, 4]) {
    const sizes = series[0].frames.map(frame => Math.abs(frame.size - wanted));
    const place = sizes.indexOf(Math.min(...sizes));
    const tick = make("span", get("ticks"), wanted === 1 ? "1, trained" : named(wanted));
    tick.style.left = `${100 * (place + 0.5) / count}%`;
  }
  document.querySelector(".track").style.setProperty("--n", count);
  const DOT = '<svg viewBox="0 0 12 12"><circle cx="6" cy="6" r="5"/></svg>';
  const CROSS = '<svg viewBox="0 0 12 12"><path d="M2 2L10 10M10 2L2 10"/></svg>';
  const strips = Object.fromEntries(networks.map(key => {
    make("p", get("strip"), get(key).querySelector("h3").textContent, key);
    return [key, make("div", get("strip"), "", key)];
  }));

  const answer = (key, frame, label) => {
    const said = top(frame[key]), right = said === label;
    const [big, words] = get(key).querySelector(".said").children;
    big.textContent = said;
    words.textContent = `${right ? "✓ right" : "✗ wrong"}, ${sure(frame[key][said])}`;
    words.className = right ? "right" : "wrong";
    bars[key].forEach((bar, digit) => {
      bar.style.setProperty("--p", frame[key][digit]);
      bar.classList.toggle("true", digit === label);
      bar.title = `${digit}: ${percent(frame[key][digit])}`;
    });
    return `${get(key).querySelector("h3").textContent} answers ${said}, ${right ? "right" : "wrong"}`;
  };

  let speaking;
  function show() {
    const { label, frames } = series[chosen], frame = frames[slider.value];
    get("picture").src = frame.picture;
    get("picture").alt = `a ${label} at size ${named(frame.size)}`;
    get("chosen").textContent = named(frame.size);
    slider.setAttribute("aria-valuetext", `size ${named(frame.size)}`);
    digits.forEach((button, n) => button.setAttribute("aria-pressed", n === chosen));
    const said = networks.map(key => answer(key, frame, label));
    const most = top(frame.shares);
    levels.forEach((level, k) => {
      level.children[1].style.setProperty("--p", frame.shares[k]);
      level.children[2].textContent = percent(frame.shares[k]);
      level.classList.toggle("most", k === most);
    });
    for (const key of networks) {
      strips[key].innerHTML = frames.map(one => top(one[key]) === label ? DOT : CROSS).join("");
      strips[key].children[slider.value].classList.add("now");
    }
    clearTimeout(speaking);
    speaking = setTimeout(() => {
      if (!playing) get("spoken").textContent = `Size ${named(frame.size)}. ${said.join(". ")}. It is ${names[most]} that answers.`;
    }, 300);
  }

  let playing = null;
  const play = get("play"), calm = matchMedia("(prefers-reduced-motion: reduce)");
  const stop = () => {
    clearInterval(playing);
    playing = null;
    play.textContent = "Play";
    show();
  };
  play.addEventListener("click", () => {
    if (playing) return stop();
    if (Number(slider.value) === count - 1) slider.value = 0;
    play.textContent = "Stop";
    playing = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      if (Number(slider.value) === count - 1) stop(); else show();
    }, calm.matches ? 1000 : 160);
  });
  slider.addEventListener("input", () => playing ? stop() : show());

  slider.max = count - 1;
  const ones = series[0].frames.map(frame => Math.abs(Math.log(frame.size)));
  slider.value = ones.indexOf(Math.min(...ones));
  chosen = Math.min(5, series.length - 1);
  get("viewer").hidden = false;
  show();
})();
