"use strict";
// The charts and the threshold explorer of a report. Texts of the data reach the page as text nodes and attributes only.
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const colour = (k) => `var(--series-${k % 5})`;
  const fixed = (value, digits = 3) => (value == null || Number.isNaN(value) ? "–" : value.toFixed(digits));
  const isWhole = (value) => Math.abs(value - Math.round(value)) < 1e-6;
  const count = (value) =>
    (isWhole(value) ? Math.round(value) : Number(value.toFixed(1))).toLocaleString("en-GB", { maximumFractionDigits: 1 });
  const significant = (value) => (value === 0 ? "0" : String(Number(value.toPrecision(5))));
  const clip = (text, length) => (text.length <= length ? text : text.slice(0, length - 1) + "…");

  // ---- The curve of a part -------------------------------------------------------------------------------------

  // Points of a curve, the first of which flags nothing. `found` and `false` are shares of the positives and negatives.
  function curveOf(part) {
    const flagged = [0, ...part.curve.flagged];
    const found = [0, ...part.curve.found];
    const last = flagged.length - 1;
    const positives = found[last];
    const negatives = flagged[last] - positives;
    return {
      part,
      total: flagged[last],
      prevalence: positives / flagged[last],
      threshold: [Infinity, ...part.curve.threshold],
      recall: found.map((value) => value / positives),
      false: flagged.map((value, k) => (value - found[k]) / negatives),
    };
  }

  // The expected outcome at a position on a curve, which may be between two points: then the rows between their
  // thresholds are taken in random order.
  function outcome(curve, position, use) {
    const k = Math.min(Math.floor(position), curve.recall.length - 1);
    const next = Math.min(k + 1, curve.recall.length - 1);
    const rest = position - k;
    const recall = curve.recall[k] + rest * (curve.recall[next] - curve.recall[k]);
    const wrong = curve.false[k] + rest * (curve.false[next] - curve.false[k]);
    const found = use.volume * use.prevalence * recall;
    const alarms = use.volume * (1 - use.prevalence) * wrong;
    const missed = use.volume * use.prevalence * (1 - recall);
    return {
      threshold: curve.threshold[rest > 0 ? next : k],
      recall,
      found,
      missed,
      false: alarms,
      flagged: found + alarms,
      precision: found + alarms > 0 ? found / (found + alarms) : NaN,
      cost: use.costFalse * alarms + use.costMissed * missed,
    };
  }

  function flaggedShare(curve, k, prevalence) {
    return prevalence * curve.recall[k] + (1 - prevalence) * curve.false[k];
  }

  // The position at which so many rows of the volume are flagged.
  function positionOfTop(curve, top, use) {
    const share = top / use.volume;
    let low = 0;
    let high = curve.recall.length - 1;
    if (share >= flaggedShare(curve, high, use.prevalence)) return high;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (flaggedShare(curve, middle, use.prevalence) <= share) low = middle;
      else high = middle;
    }
    const start = flaggedShare(curve, low, use.prevalence);
    const rest = (share - start) / (flaggedShare(curve, high, use.prevalence) - start);
    // Rounding must not leave a threshold that flags exactly so many rows.
    return rest < 1e-9 ? low : rest > 1 - 1e-9 ? high : low + rest;
  }

  function leastCost(curve, use) {
    let best = 0;
    let least = Infinity;
    for (let k = 0; k < curve.recall.length; k++) {
      const cost = outcome(curve, k, use).cost;
      if (cost < least) [best, least] = [k, cost];
    }
    return best;
  }

  // The precision of a point at another prevalence: its odds change by the ratio of the odds of the prevalences.
  function precisionAt(precision, from, to) {
    const hit = (precision * to) / from;
    const miss = ((1 - precision) * (1 - to)) / (1 - from);
    return hit / (hit + miss);
  }

  // ---- Charts --------------------------------------------------------------------------------------------------

  const charts = [];
  function chart(element, draw) {
    if (!element) return;
    const redraw = () => {
      const width = element.clientWidth;
      if (width > 0) element.replaceChildren(draw(width));
    };
    charts.push(redraw);
    redraw();
  }
  const options = (width, more) => ({ className: "plot", width, marginBottom: 46, ...more });
  // Below the numbers of the axis, not beside them.
  const below = { labelOffset: 40 };

  function legend(element, entries) {
    if (!element) return;
    element.replaceChildren(
      ...entries.map(([text, kind]) => {
        const entry = document.createElement("span");
        entry.className = kind;
        entry.textContent = text;
        return entry;
      }),
    );
  }

  // Rows with a name, an estimate and an interval, drawn as dots on lines.
  function intervals(width, rows, { label, zero, rules = [], ticks = null, domain = null }) {
    const small = width < 520;
    const left = Math.min(small ? 120 : 230, 24 + 6.6 * Math.max(...rows.map((row) => row.name.length)));
    const letters = Math.floor(left / 6.6);
    const unique = rows.map((row, k) => ({ ...row, key: k }));
    const shade = (row) => (row.soft ? "var(--soft)" : colour(row.colour || 0));
    const text = (row) => `${row.name}\n${fixed(row.estimate)} (${fixed(row.low)} to ${fixed(row.high)})`;
    return Plot.plot(
      options(width, {
        height: 66 + 26 * rows.length,
        marginLeft: left,
        marginRight: 24,
        x: { ...below, label, grid: true, ...(domain ? { domain } : {}), ticks: small ? 4 : 8 },
        y: {
          type: "band", domain: unique.map((row) => row.key), label: null, tickSize: 0,
          tickFormat: (k) => clip(unique[k].name, letters),
        },
        marks: [
          ...(zero ? [Plot.ruleX([0], { stroke: "currentColor", strokeOpacity: 0.5 })] : []),
          Plot.ruleX(rules, { stroke: "currentColor", strokeDasharray: "4 3", strokeOpacity: 0.7 }),
          ...(ticks ? [Plot.tickX(unique, { y: "key", x: ticks, stroke: "currentColor", strokeDasharray: "3 2" })] : []),
          Plot.ruleY(unique.filter((row) => row.low != null), {
            y: "key", x1: "low", x2: "high", stroke: shade, strokeWidth: 2,
          }),
          Plot.dot(unique.filter((row) => row.estimate != null), {
            y: "key", x: "estimate", fill: shade, r: 4.5,
          }),
          Plot.tip(unique.filter((row) => row.estimate != null), Plot.pointerY({ y: "key", x: "estimate", title: text })),
        ],
      }),
    );
  }

  function drawContenders(article, target) {
    const rows = target.parts.map((part, k) => ({ name: part.name, ...part.ap, colour: k }));
    for (const member of target.leaderboard) {
      // The blend of a committee is the part "cross-fitted" or "held-out".
      if (!member.blend) rows.push({ name: member.name, ...member.ap, colour: 4, soft: member.weight === 0 });
    }
    const rules = [...new Set(target.parts.map((part) => part.no_skill))];
    chart(article.querySelector("[data-chart=contenders]"), (width) =>
      intervals(width, rows, { label: "average precision (dashed: no skill) →", rules, domain: [0, 1] }),
    );
  }

  function drawImportance(article, target) {
    if (!target.importance) return;
    const rows = target.importance.each.map((item) => ({ name: item.column, ...item.loss }));
    if (!rows.length) return;
    chart(article.querySelector("[data-chart=importance]"), (width) =>
      intervals(width, rows, { label: "loss of average precision →", zero: true }),
    );
  }

  function drawSubgroups(article, target) {
    for (const element of article.querySelectorAll("[data-chart=subgroups]")) {
      const table = target.subgroups[Number(element.dataset.number)];
      const rows = table.each.map((group) => ({ name: group.value, no_skill: group.no_skill, ...group.ap }));
      chart(element, (width) =>
        intervals(width, rows, { label: "average precision (dashed: no skill of the group) →", ticks: "no_skill", domain: [0, 1] }),
      );
    }
  }

  function drawCalibration(article, target, state) {
    chart(article.querySelector("[data-chart=calibration]"), (width) => {
      const bins = target.parts[state.part].calibration;
      if (!bins.length) {
        const note = document.createElement("p");
        note.className = "note";
        note.textContent = "These scores have no probabilities.";
        return note;
      }
      const most = Math.min(1, 1.05 * Math.max(...bins.flatMap((bin) => [bin.predicted, bin.high])));
      const text = (bin) =>
        `${count(bin.rows)} rows\npredicted ${fixed(bin.predicted)}\nobserved ${fixed(bin.observed)} (${fixed(bin.low)} to ${fixed(bin.high)})`;
      return Plot.plot(
        options(width, {
          height: Math.min(360, 40 + 0.75 * width),
          marginLeft: 48,
          x: { ...below, type: "sqrt", domain: [0, most], label: "predicted probability →", ticks: 5 },
          y: { type: "sqrt", domain: [0, most], label: "↑ observed share of positives", grid: true, ticks: 5 },
          marks: [
            Plot.line([[0, 0], [most, most]], { stroke: "currentColor", strokeDasharray: "4 3", strokeOpacity: 0.6 }),
            Plot.ruleX(bins, { x: "predicted", y1: "low", y2: "high", stroke: colour(state.part), strokeWidth: 2 }),
            Plot.dot(bins, { x: "predicted", y: "observed", fill: colour(state.part), r: 4.5 }),
            Plot.tip(bins, Plot.pointer({ x: "predicted", y: "observed", title: text })),
          ],
        }),
      );
    });
  }

  function drawHistogram(article, target, state) {
    const element = article.querySelector("[data-chart=histogram]");
    legend(article.querySelector("[data-legend=classes]"), [["positives", "series-0"], ["negatives", "series-1"]]);
    chart(element, (width) => {
      const { start, width: step, positives, negatives } = target.parts[state.part].histogram;
      const bars = (shares) => shares.map((share, k) => ({ x1: start + k * step, x2: start + (k + 1) * step, share }));
      const style = (k) => ({ x1: "x1", x2: "x2", y: "share", fill: colour(k), fillOpacity: 0.45, inset: 0 });
      const plot = Plot.plot(
        options(width, {
          height: Math.min(360, 40 + 0.75 * width),
          marginLeft: 48,
          x: { ...below, label: "score →", ticks: 6 },
          y: { label: "↑ share of the class", grid: true, ticks: 5, tickFormat: "%" },
          marks: [
            Plot.rectY(bars(negatives), style(1)),
            Plot.rectY(bars(positives), style(0)),
            Plot.ruleY([0], { stroke: "currentColor" }),
          ],
        }),
      );
      const scale = plot.scale("x");
      const [top, bottom] = plot.scale("y").range;
      const line = svg("line", { y1: top, y2: bottom, stroke: "currentColor", "stroke-width": 1.5 });
      plot.append(line);
      state.markScore = (threshold) => {
        const inside = Number.isFinite(threshold);
        line.setAttribute("visibility", inside ? "visible" : "hidden");
        if (inside) {
          line.setAttribute("x1", scale.apply(threshold));
          line.setAttribute("x2", scale.apply(threshold));
        }
      };
      state.markScore(state.threshold);
      return plot;
    });
  }

  function drawLearning() {
    const element = document.querySelector("[data-chart=learning]");
    if (!element) return;
    const kinds = [
      ["valid_ap", "AP, validation rows", 0, null],
      ["ap", "AP, training rows", 1, null],
      ["valid_objective", "objective, validation rows", 0, "5 3"],
      ["objective", "objective, training rows", 1, "5 3"],
    ];
    const present = kinds.filter(([name]) => report.learning.some((run) => run[name].some((value) => value != null)));
    legend(
      document.querySelector("[data-legend=learning]"),
      present.map(([, label, k, dash]) => [label, `series-${k}${dash ? " dashed" : ""}`]),
    );
    const longest = Math.max(...report.learning.map((run) => run.stage.length));
    const stages = report.learning[0].stage;
    const starts = stages.flatMap((name, k) => (k === 0 || name !== stages[k - 1] ? [{ epoch: k + 0.5, name }] : []));
    chart(element, (width) =>
      Plot.plot(
        options(width, {
          height: 320,
          marginLeft: 48,
          marginTop: 28,
          x: { ...below, label: "epoch →", domain: [0.5, Math.max(longest + 0.5, 2)], ticks: Math.min(longest, 10), tickFormat: (k) => (isWhole(k) ? String(k) : "") },
          y: { domain: [0, 1], label: null, grid: true },
          marks: [
            Plot.ruleX(starts.slice(1), { x: "epoch", stroke: "currentColor", strokeOpacity: 0.35 }),
            Plot.text(starts, { x: "epoch", frameAnchor: "top", text: "name", dy: -16, dx: 4, textAnchor: "start", fill: "currentColor" }),
            ...report.learning.flatMap((run) =>
              present.flatMap(([name, label, k, dash]) => {
                const points = run[name].map((value, epoch) => ({ epoch: epoch + 1, value: value ?? NaN }));
                const marks = [Plot.line(points, { x: "epoch", y: "value", stroke: colour(k), strokeWidth: 1.8, strokeDasharray: dash ?? undefined })];
                if (name === "valid_ap" && run.chosen > 0) {
                  marks.push(Plot.dot(points.slice(run.chosen - 1, run.chosen), { x: "epoch", y: "value", fill: colour(k), r: 5 }));
                }
                if (points.length === 1) marks.push(Plot.dot(points, { x: "epoch", y: "value", fill: colour(k), r: 3 }));
                return marks;
              }),
            ),
          ],
        }),
      ),
    );
  }

  function svg(name, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  // ---- The explorer --------------------------------------------------------------------------------------------

  function explorer(article, target, state) {
    const section = article.querySelector(".explorer");
    const control = (name) => section.querySelector(`[data-control="${name}"]`);
    const output = (name) => section.querySelector(`[data-output="${name}"]`);
    const curves = target.parts.map(curveOf);
    const shown = curves.map(() => true);
    const use = { volume: 0, prevalence: 0, costFalse: 1, costMissed: 10 };
    let mode = "threshold"; // or "top": what stays fixed while the prevalence or the volume changes
    let top = 0;
    let positionOnCurve = 0;
    let geometry = null;

    const curve = () => curves[state.part];

    function choosePart(number) {
      state.part = number;
      use.volume = curve().total;
      use.prevalence = curve().prevalence;
      mode = "threshold";
      // Begin where as many rows are flagged as there are positives.
      positionOnCurve = Math.round(positionOfTop(curve(), curve().total * curve().prevalence, use));
      control("position").max = curve().recall.length - 1;
      control("volume").value = significantInput(use.volume);
      showPrevalence();
    }
    const significantInput = (value) => (isWhole(value) ? Math.round(value) : Number(value.toPrecision(6)));
    function showPrevalence() {
      control("prevalence").value = Math.log10(use.prevalence);
      control("prevalence-percent").value = Number((100 * use.prevalence).toPrecision(4));
    }

    function set(name, value, text) {
      const element = output(name);
      element.dataset.value = String(value);
      element.textContent = text;
    }

    function update({ redraw = false } = {}) {
      if (mode === "top") positionOnCurve = positionOfTop(curve(), top, use);
      const now = outcome(curve(), positionOnCurve, use);
      state.threshold = now.threshold;
      set("threshold", now.threshold, Number.isFinite(now.threshold) ? significant(now.threshold) : "∞ (none)");
      set("precision", now.precision, fixed(now.precision));
      set("recall", now.recall, fixed(now.recall));
      for (const name of ["flagged", "found", "false", "missed", "cost"]) set(name, now[name], count(now[name]));
      const platt = target.parts[state.part].platt;
      const chance = platt.length ? 1 / (1 + Math.exp(-(platt[0] * now.threshold + platt[1]))) : null;
      output("probability").textContent = chance == null ? "" : ` (a probability of ${fixed(chance)} in these rows)`;
      const own = Math.abs(use.prevalence - curve().prevalence) < 1e-12 && use.volume === curve().total;
      output("basis").textContent = own
        ? `Counts of the ${count(curve().total)} ${target.parts[state.part].name} rows.`
        : `Expected for ${count(use.volume)} rows a day with ${(100 * use.prevalence).toPrecision(3)} % positives, if positives and negatives score as in the ${target.parts[state.part].name} rows.`;
      control("position").value = Math.round(positionOnCurve);
      if (mode !== "top" || document.activeElement !== control("top")) control("top").value = Number(now.flagged.toFixed(isWhole(now.flagged) ? 0 : 2));
      if (redraw && geometry) geometry.redraw();
      if (geometry) geometry.mark(now);
      if (state.markScore) state.markScore(now.threshold);
    }

    // -- the chart
    const element = section.querySelector("[data-chart=curve]");
    let drawCurve = () => {};
    chart(element, (width) => {
      const height = Math.round(Math.min(460, Math.max(280, 0.72 * width)));
      const scaled = curves.map((each, k) => (k === state.part ? use.prevalence : each.prevalence));
      const marks = [];
      curves.forEach((each, k) => {
        const band = each.part.band;
        if (shown[k] && band && k === state.part) {
          const rows = band.recall.map((recall, j) => ({
            recall,
            low: precisionAt(band.low[j], each.prevalence, scaled[k]),
            high: precisionAt(band.high[j], each.prevalence, scaled[k]),
          }));
          marks.push(Plot.areaY(rows, { x: "recall", y1: "low", y2: "high", fill: colour(k), fillOpacity: 0.14 }));
        }
      });
      curves.forEach((each, k) => {
        if (!shown[k]) return;
        const points = [];
        for (let j = 1; j < each.recall.length; j++) {
          const share = flaggedShare(each, j, scaled[k]);
          points.push([each.recall[j], (scaled[k] * each.recall[j]) / share]);
        }
        points.unshift([0, points[0][1]]);
        marks.push(Plot.line(points, { curve: "step-before", stroke: colour(k), strokeWidth: k === state.part ? 2.2 : 1.5 }));
      });
      const plot = Plot.plot(
        options(width, {
          height,
          marginLeft: 48,
          x: { ...below, domain: [0, 1], label: "recall →", ticks: width < 520 ? 5 : 10 },
          y: { domain: [0, 1], label: "↑ precision", grid: true },
          marks: [
            Plot.ruleY([scaled[state.part]], { stroke: "currentColor", strokeDasharray: "4 3", strokeOpacity: 0.7 }),
            ...marks,
            Plot.ruleY([0], { stroke: "currentColor", strokeOpacity: 0.4 }),
          ],
        }),
      );
      const x = plot.scale("x");
      const y = plot.scale("y");
      const vertical = svg("line", { y1: y.apply(0), stroke: "currentColor", "stroke-opacity": 0.5, "stroke-dasharray": "2 2" });
      const horizontal = svg("line", { x1: x.apply(0), stroke: "currentColor", "stroke-opacity": 0.5, "stroke-dasharray": "2 2" });
      const handle = svg("circle", { r: 9, fill: colour(state.part), stroke: "var(--paper)", "stroke-width": 3, class: "handle" });
      plot.append(vertical, horizontal, handle);
      const own = curve();
      const across = own.recall.map((recall) => x.apply(recall));
      const down = own.recall.map((recall, j) =>
        y.apply(j === 0 ? NaN : (use.prevalence * recall) / flaggedShare(own, j, use.prevalence)),
      );
      function drag(event) {
        const box = plot.getBoundingClientRect();
        const scale = width / box.width;
        const [px, py] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
        let best = 1;
        let nearest = Infinity;
        for (let j = 1; j < across.length; j++) {
          // Near the curve the distance decides; beside it, the recall.
          const distance = 4 * (across[j] - px) ** 2 + (down[j] - py) ** 2;
          if (distance < nearest) [best, nearest] = [j, distance];
        }
        mode = "threshold";
        positionOnCurve = best;
        update();
      }
      plot.addEventListener("pointerdown", (event) => {
        event.preventDefault();
        plot.setPointerCapture(event.pointerId);
        drag(event);
      });
      plot.addEventListener("pointermove", (event) => {
        if (event.buttons & 1) drag(event);
      });
      geometry = {
        redraw: () => drawCurve(),
        mark: (now) => {
          const empty = Number.isNaN(now.precision);
          const [px, py] = [x.apply(now.recall), y.apply(empty ? 1 : now.precision)];
          for (const [name, value] of [["cx", px], ["cy", py]]) handle.setAttribute(name, value);
          for (const [name, value] of [["x1", px], ["x2", px], ["y2", py]]) vertical.setAttribute(name, value);
          for (const [name, value] of [["y1", py], ["y2", py], ["x2", px]]) horizontal.setAttribute(name, value);
        },
      };
      geometry.mark(outcome(own, positionOnCurve, use));
      return plot;
    });
    drawCurve = charts[charts.length - 1];

    const key = section.querySelector("[data-legend=curves]");
    key.replaceChildren(
      ...curves.map((each, k) => {
        const label = document.createElement("label");
        label.className = `series-${k % 5}`;
        if (curves.length > 1) {
          const box = document.createElement("input");
          box.type = "checkbox";
          box.checked = true;
          box.addEventListener("change", () => {
            shown[k] = box.checked;
            update({ redraw: true });
          });
          label.append(box, " ");
        }
        label.append(`${each.part.name}: AP ${fixed(each.part.ap.estimate)}`);
        return label;
      }),
    );

    // -- the controls
    const value = (name) => Number(control(name).value);
    const on = (name, event, act) => control(name).addEventListener(event, act);
    section.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
    on("part", "change", () => {
      choosePart(value("part"));
      update({ redraw: true });
      state.redraw();
    });
    on("position", "input", () => {
      mode = "threshold";
      positionOnCurve = value("position");
      update();
    });
    on("top", "input", () => {
      if (control("top").value === "" || value("top") < 0) return;
      mode = "top";
      top = value("top");
      update();
    });
    on("volume", "input", () => {
      if (!(value("volume") > 0)) return;
      use.volume = value("volume");
      update();
    });
    function setPrevalence(share) {
      if (!(share > 0 && share < 1)) return false;
      use.prevalence = share;
      update({ redraw: true });
      return true;
    }
    on("prevalence", "input", () => {
      if (setPrevalence(10 ** value("prevalence"))) control("prevalence-percent").value = Number((100 * use.prevalence).toPrecision(4));
    });
    on("prevalence-percent", "input", () => {
      if (setPrevalence(value("prevalence-percent") / 100)) control("prevalence").value = Math.log10(use.prevalence);
    });
    on("reset-prevalence", "click", () => {
      setPrevalence(curve().prevalence);
      showPrevalence();
    });
    for (const [name, field] of [["cost-false", "costFalse"], ["cost-missed", "costMissed"]]) {
      on(name, "input", () => {
        if (!(value(name) >= 0)) return;
        use[field] = value(name);
        update();
      });
    }
    on("least-cost", "click", () => {
      mode = "threshold";
      positionOnCurve = leastCost(curve(), use);
      update();
    });

    choosePart(0);
    update({ redraw: true });
  }

  // ---- The page ------------------------------------------------------------------------------------------------

  const articles = [...document.querySelectorAll("article[data-target]")];
  const drawn = new Set();
  function show(number) {
    articles.forEach((article, k) => {
      article.hidden = k !== number;
    });
    if (drawn.has(number)) return;
    drawn.add(number);
    const [article, target] = [articles[number], report.targets[number]];
    const state = { part: 0, threshold: NaN, markScore: null, redraw: () => {} };
    drawContenders(article, target);
    const first = charts.length;
    drawCalibration(article, target, state);
    drawHistogram(article, target, state);
    const own = charts.slice(first);
    state.redraw = () => own.forEach((redraw) => redraw());
    explorer(article, target, state);
    drawImportance(article, target);
    drawSubgroups(article, target);
  }
  show(0);
  drawLearning();

  const choice = document.querySelector("[data-control=target]");
  if (choice) choice.addEventListener("change", () => show(Number(choice.value)));
  document.querySelector("[data-control=theme]").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : window.matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  let waiting = 0;
  let lastWidth = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === lastWidth) return;
    lastWidth = window.innerWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => charts.forEach((redraw) => redraw()));
  });
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
